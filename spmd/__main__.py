"""`python -m spmd`."""

import sys

from spmd.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
