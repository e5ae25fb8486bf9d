"""Files of arrays: inputs and outputs."""

ARCHIVES = (".npz", ".safetensors")  # endings of files that hold arrays by name
