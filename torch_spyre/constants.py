"""Names and sizes that every layer uses."""

DEVICE_NAME = "spyre"
DISTRIBUTED_BACKEND_NAME = "spyreccl"
BYTES_IN_STICK = 128
