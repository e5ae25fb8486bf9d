"""What is said where a recursion is deeper than its function allows."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any


def bound(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call by name, with the defaults of those that it leaves out."""
    bound_arguments = inspect.signature(function).bind(*args, **kwargs)
    bound_arguments.apply_defaults()
    return bound_arguments


def too_deep(function: Any, arguments: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return the pieces of the message. arguments: of the call that has no room, by name."""
    name, depth = function.name, function.depth
    argument_texts = [piece for k, (argument, value) in enumerate(arguments)
                      for piece in (f"{', ' if k else ' with '}{argument} = ", value)]
    return [f"the recursion of {name} is deeper than {depth} calls\n"
            f"  expected: at most {depth} calls of {name} that have begun and not ended\n"
            f"  found:    one more", *argument_texts,
            "\n  try:      @spmd.recursive(depth=…) with a larger depth, or a test that ends the "
            "calls"]
