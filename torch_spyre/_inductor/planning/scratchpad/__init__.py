"""Scratchpads: what stays in LX (`residency`), and at which addresses (`lx_addresses`)."""
