"""`python -m spmd`, and the command `spmd`."""

import signal
import sys


def main() -> int:
    """The command line; returns the exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported, an interrupt ends us as it ends any program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from spmd import foreign_codegen

    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        return 69
    from spmd.cli import main

    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
