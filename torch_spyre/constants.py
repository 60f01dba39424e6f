"""Names and sizes that every layer uses."""

DEVICE_NAME = "spyre"
DISTRIBUTED_BACKEND_NAME = "spyreccl"
BYTES_IN_STICK = 128
CODE_DIRECTORY = "spyreCodeDir"
"""Of a bundle: what the back-end makes of it."""
SEGMENT_BYTES = 1 << 34
"""Of an address that is a number: what is above says which argument it is of."""
SEGMENTS = 7
"""For arguments; the one after them holds programs."""
