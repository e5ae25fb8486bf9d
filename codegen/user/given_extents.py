"""Extents of named dims that only a run knows: from the shapes of the inputs that it is given."""

from __future__ import annotations

from codegen.errors import InputError

TYPE_CHECKING = False  # ranks import this: typing costs them time
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class GivenExtents:
    """The extents of bounded dims. most: of each dim by name, how many elements it has at most.
    known: the extents so far, each with the input that said it."""

    def __init__(self, most: Mapping[str, int]) -> None:
        self.most = most
        self.known: dict[str, tuple[int, str]] = {}

    def take(self, name: str, dims: Sequence[object], shape: Sequence[int]) -> None:
        """Note the extents of an input; `dims` are names of dims, or anything else, one for each
        entry of its shape.

        Raises InputError where it has too many elements along a dim, or not as many as another
        input has along the same.
        """
        if len(dims) != len(shape):
            return  # another number of dims is said where shapes are compared
        for d, (dim, extent) in enumerate(zip(dims, shape)):
            if not isinstance(dim, str) or dim not in self.most:
                continue
            if extent > self.most[dim]:
                raise InputError(
                    f"input {name} has {_elements(extent, d)}; {dim} has at most {self.most[dim]}",
                    expected=f"0 to {self.most[dim]} along dim {d}", found=f"shape {tuple(shape)}",
                    remedy=f'fewer at a time; or Dim("{dim}", at_most={extent}) in the program',
                )
            first, of = self.known.setdefault(dim, (extent, name))
            if extent != first:
                raise InputError(
                    f'input {name} has {_elements(extent, d)}, {of} has {first}: both are "{dim}"',
                    expected=f"equally many along {dim} in all inputs of a run",
                    found=f"{of}: {first}, {name}: {extent}",
                )

    def values(self) -> dict[str, int]:
        return {dim: extent for dim, (extent, _) in self.known.items()}


def _elements(count: int, d: int) -> str:
    noun = "row" if d == 0 else "element"
    return f"{count} {noun}{'' if count == 1 else 's'}{f' along dim {d}' if d else ''}"
