"""Measurements, each a ratio to a peer in the same run. `python -m benchmarks` runs them all."""
