"""Scratchpad allocation: which buffers are LX-resident (`residency`), at which addresses."""
