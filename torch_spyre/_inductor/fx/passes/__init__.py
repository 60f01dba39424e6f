"""Passes over the FX graph. `pipeline.py` says in which order they run."""
