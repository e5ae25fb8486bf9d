"""`python -m spmd`, and the command `spmd`."""

import sys
from importlib import import_module

from spmd import foreign_codegen


def main() -> int:
    """The command line; returns the exit code."""
    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        return 69
    try:
        signal = import_module("signal")
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            # While modules are imported, an interrupt ends us as it ends any program.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        return int(import_module("spmd.cli").main(sys.argv[1:]))
    except Exception as error:
        if fault := import_module("spmd.hiding").hidden(error):
            print(f"spmd: {fault}", file=sys.stderr)
            return int(fault.exit_code)
        raise


if __name__ == "__main__":
    sys.exit(main())
