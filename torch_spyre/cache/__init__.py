"""Caches on disk: the store, and the keys that decide whether an entry is valid."""
