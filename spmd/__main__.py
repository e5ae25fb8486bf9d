"""`python -m spmd`, and the command `spmd`."""

import signal
import sys
from importlib import import_module

from spmd import foreign_codegen


def main() -> int:
    """The command line; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported, an interrupt ends us as it ends any program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        return 69
    return int(import_module("spmd.cli").main(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
