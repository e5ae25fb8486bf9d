"""What a user's code forks ends in that code: it never goes on with the work of the process that it
was forked of, which would be done twice."""

from __future__ import annotations

import os
from typing import Any

from codegen.errors import Place


class in_one_process:
    """Run calls of the user's code in a `with` statement: a process forked in one ends here, with
    status 1.

    It is said on standard error, unless it ends by sys.exit."""

    def __init__(self, place: Place | None) -> None:
        self.place, self.process = place, os.getpid()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if os.getpid() != self.process:
            self.end(error)

    def end(self, error: BaseException | None) -> None:
        if not isinstance(error, SystemExit):
            said = "" if error is None else f" ({type(error).__name__})"
            os.write(2, f"spmd feed: {self.place}: a process that was forked here came back{said}; "
                     "it is ended. try: end it by os._exit(0), or use subprocess\n".encode())
        os._exit(1)
