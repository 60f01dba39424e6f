"""Operations to OpSpecs: which layout each buffer gets, and the restickify where two disagree."""
