"""A bundle directory to checked operations: every field is read, every rule is checked."""
