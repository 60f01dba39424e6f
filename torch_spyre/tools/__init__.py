"""Commands for people who work on the package."""
