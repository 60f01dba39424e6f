"""Every change that we make to PyTorch, and nothing else."""
