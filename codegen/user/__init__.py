"""Users' declarations and objects, read alike by the tracer and the oracles."""
