"""`python -m spmd`, and the command `spmd`."""

import sys
from importlib import import_module

from spmd import foreign_codegen, launched


def main() -> int:
    """Run the command line and return its exit code."""
    _leave_by_codes(several=launched())
    if problem := foreign_codegen():
        print(problem, file=sys.stderr)
        return 69
    try:
        code = int(import_module("spmd.cli").main(sys.argv[1:]))
        _leave_by_codes()  # while Python ends
        return code
    except Exception as error:
        if fault := import_module("spmd.shadowed_modules").shadowing_error(error):
            print(f"spmd: {fault}", file=sys.stderr)
            return int(fault.exit_code)
        raise


def _leave_by_codes(several: bool = False) -> None:
    """From now on, also while modules are imported, a signal ends us by an exit code."""
    signals = import_module("_signal")  # it is there: what the module signal imports takes time
    numbers = {signals.SIGINT, signals.SIGTERM}
    before = signals.pthread_sigmask(signals.SIG_BLOCK, numbers)
    try:
        import_module("spmd.launch.exit_signals").begin(waits=several)
    except Exception:  # there is no engine: whoever needs it says so
        if signals.getsignal(signals.SIGINT) is signals.default_int_handler:
            signals.signal(signals.SIGINT, signals.SIG_DFL)
    finally:
        signals.pthread_sigmask(signals.SIG_SETMASK, before)


if __name__ == "__main__":
    sys.exit(main())
