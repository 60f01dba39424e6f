"""Caches on disk: the store, and the keys that say when an entry is still right."""
