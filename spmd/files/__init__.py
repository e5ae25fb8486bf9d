"""Files of arrays: inputs and outputs."""
