"""The host's side of a compiled graph: Inductor's scheduler and wrapper, kernels, their cache."""
