"""Plan to C: the emitter spells, it decides nothing."""
