"""Random programs on the card, eager and compiled, held against what rounding explains."""
