"""The image as a file: objects, ELF, the manifest, kernels."""
