"""Files of arrays: inputs and outputs."""

ARCHIVES = (".npz", ".safetensors")  # endings of files that hold arrays by name
TABLES = (".csv", ".parquet")  # endings of files that hold columns by name
ZARR = ".zarr"  # of folders that hold frames
ENDINGS = (".npy", *ARCHIVES, *TABLES)


def is_series(path: str) -> bool:
    """Return whether a path is one of many frames: frames/{}.npy, or FILE.zarr."""
    return path.endswith(ZARR) or "{" in path
