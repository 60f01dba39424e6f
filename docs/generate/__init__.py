"""Makers of documentation pages."""
