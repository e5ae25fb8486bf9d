"""`python -m spmd`."""

import signal
import sys

if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # While modules are imported, an interrupt ends us as it ends any program.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from spmd import foreign_codegen

    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        sys.exit(69)
    from spmd.cli import main

    sys.exit(main(sys.argv[1:]))
