"""What torch asks of a device: the contents of `torch.spyre`, one file per subject."""
