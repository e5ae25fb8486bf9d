"""`python -m spmd`."""

import sys

from spmd import foreign_codegen

if __name__ == "__main__":
    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        sys.exit(69)
    from spmd.cli import main

    sys.exit(main(sys.argv[1:]))
