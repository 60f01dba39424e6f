"""OpSpecs with all decisions made: tiles, cores, scratchpads, device memory."""
