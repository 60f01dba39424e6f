"""Visualisation: `torch_spyre.explain`, and pictures of layouts and plans."""
