"""Loops over tiles: chosen by the compiler, or hinted by the program."""
