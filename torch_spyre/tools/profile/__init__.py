"""`python -m torch_spyre.tools.profile`: where compile time and run time go."""
