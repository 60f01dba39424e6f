"""Eager operations: compiled for the card, or CPU fallbacks, which are reported."""
