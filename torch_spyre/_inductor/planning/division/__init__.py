"""Work division: which core computes which rows."""
