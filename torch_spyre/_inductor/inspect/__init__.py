"""Inspection of a compilation: the debug directory, reports, costs, source names.

Reads what the stages made and changes nothing.
"""
