"""What front-end and back-end both ask of the card: slices of cores, the ring, device time."""
