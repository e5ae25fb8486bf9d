"""What a program expects while it runs: where it finds otherwise, its run ends with a message.

In: a truth value of the program, and what to say where it does not hold. Out: an `expect` op.
Always holds: the text is put together only where something does not hold.
"""

from __future__ import annotations

from typing import Any

from codegen.ir import Value
from codegen.ops import POSITION
from codegen.trace.context import Context

AT = object()  # in a text: the index of the first element that does not hold


def expect(context: Context, holds: Value, *text: Any) -> None:
    """The run ends where `holds` (bool, of any shape) is not true everywhere, with this text: what
    is a Value (of the same shape, or 0-d) is shown as it is at the first such element; AT is that
    element's index. The first line is the message; more lines follow it, as an error's do."""
    parts, shown = [""], []
    for item in text:
        if item is AT:
            parts += [POSITION, ""]
        elif isinstance(item, Value):
            shown.append(item)
            parts += ["", ""]
        else:
            parts[-1] += str(item)
    context.emit("expect", (holds, *shown), {"parts": tuple(parts)})
