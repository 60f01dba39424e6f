"""The OpSpec IR: operations with coordinates into device memory. Text form, loops, validator."""
