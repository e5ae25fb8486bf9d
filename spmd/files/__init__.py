"""Files of arrays: inputs and outputs."""

ARCHIVES = (".npz", ".safetensors")  # endings of files that hold arrays by name
TABLES = (".csv", ".parquet")  # endings of files that hold columns by name
ENDINGS = (".npy", *ARCHIVES, *TABLES)
