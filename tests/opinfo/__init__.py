"""PyTorch's own operator database (OpInfo) run on the device and compared with CPU."""
