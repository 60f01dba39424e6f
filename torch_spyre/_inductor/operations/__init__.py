"""LoopLevelIR to operations of one OpFunc each: loop bodies are traced, then split."""
