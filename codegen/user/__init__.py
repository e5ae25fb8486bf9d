"""What users write, as the tracer and the oracles read it: neither imports the other."""
