"""The mesh of a job: a size for every axis, bound at launch.

In: a manifest, the number of ranks, what --mesh says. Out: sizes that satisfy every condition of
the program, or a MeshError that says which sizes would.
"""

from __future__ import annotations

from codegen.errors import InputError, MeshError, UsageError
from codegen.image.conditions import broken_condition, broken_route
from codegen.symbolic.meaning import names_in
from spmd.arguments import bounded_dims, check_scalars
from spmd.files.npy import element_count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MOST_RANKS = 1 << 31  # of one job: a mesh is searched for in the square root of this
SUGGESTED_RANKS = 64  # how far to look for numbers of ranks that satisfy a program's conditions


def ranks_text(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def divisors(number: int) -> list[int]:
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def factorings(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to write a number as an ordered product of so many factors."""
    if parts == 0:
        if number == 1:
            yield ()
        return
    if parts == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in factorings(number // first, parts - 1):
            yield (first, *rest)


def balanced_sizes(number: int, fixed: list[int | None]) -> tuple[int, ...] | None:
    """Return axis sizes as MPI_Dims_create makes them: free ones as equal as possible, not
    increasing.

    None where the fixed ones do not divide the number.
    """
    known = _product(fixed)
    free = sum(size is None for size in fixed)
    if number % known:
        return None
    best: tuple[int, ...] | None = None
    for sizes in factorings(number // known, free):
        if list(sizes) != sorted(sizes, reverse=True):
            continue
        if best is None or (sizes[0] - sizes[-1], sizes) < (best[0] - best[-1], best):
            best = sizes
    if best is None:
        return None
    left = iter(best)
    return tuple(next(left) if size is None else size for size in fixed)


def mesh_symbols(manifest: dict[str, Any], sizes: tuple[int, ...]) -> dict[str, int]:
    return {f"n_{axis['name']}": size for axis, size in zip(manifest["mesh"], sizes, strict=True)}


def check_axes(manifest: dict[str, Any], sizes: dict[str, int]) -> None:
    """Raise UsageError for an axis that the program's mesh lacks, MeshError for one of no ranks.
    sizes: numbers of ranks by axis, as --mesh says them."""
    names = [axis["name"] for axis in manifest["mesh"]]
    for name, size in sizes.items():
        if name not in names:
            raise UsageError(
                f"--mesh: the program has no mesh axis {name!r}", expected=", ".join(names)
            )
        if size < 1:
            raise MeshError(f"mesh axis {name} cannot have {size} ranks", expected="1 or more")


def _fixed_sizes(manifest: dict[str, Any], sizes: dict[str, int]) -> list[int | None]:
    """Return the number of ranks along each axis of the mesh that the image or --mesh fixes; None
    where neither does. sizes: as of check_axes. Raises what that does, and MeshError where the
    image has another number."""
    check_axes(manifest, sizes)
    fixed: list[int | None] = []
    for axis in manifest["mesh"]:
        size = sizes.get(axis["name"], axis["size"])
        if axis["size"] is not None and size != axis["size"]:
            raise MeshError(
                f"mesh axis {axis['name']} has {axis['size']} ranks in this image",
                expected=f"{axis['name']}={axis['size']}, fixed when the image was built",
                found=f"{axis['name']}={size}",
            )
        fixed.append(size)
    return fixed


def axis_sizes(manifest: dict[str, Any], ranks: int, chosen: dict[str, int]) -> dict[str, int]:
    """Return the size of every mesh axis by name, for so many ranks; 1 of each where they form no
    mesh, which bind_mesh says."""
    sizes = balanced_sizes(ranks, _fixed_sizes(manifest, chosen))
    names = [axis["name"] for axis in manifest["mesh"]]
    return dict(zip(names, sizes or [1] * len(names), strict=True))


def bind_mesh(
    manifest: dict[str, Any], ranks: int | None, chosen: dict[str, int], scalars: dict[str, Any],
    processes: int = 1,
) -> tuple[int, ...]:
    """Return the size of every mesh axis. ranks: None takes what --mesh says, else one per process.

    Raises MeshError, which says which sizes would work; UsageError for an axis that is not there.
    """
    said = [c["holds"] for c in manifest["conditions"]]
    said += [e for r in manifest["routes"] for e in (r["to"], r["sends"], r["size"])]
    check_scalars(scalars, names_in(*said))
    names, fixed = [axis["name"] for axis in manifest["mesh"]], _fixed_sizes(manifest, chosen)
    free = ranks is None or None not in fixed  # --mesh says more than the number of ranks
    if ranks is None:
        ranks = _product(fixed) if None not in fixed and processes == 1 else processes
    if max(ranks, _product(fixed)) > MOST_RANKS:
        raise MeshError(f"a job has at most {MOST_RANKS} ranks",
                        found=str(max(ranks, _product(fixed))))
    sizes = balanced_sizes(ranks, fixed)
    if sizes is None:
        raise MeshError(
            f"{ranks_text(ranks)} cannot form the mesh ({_written(names, fixed)})",
            expected=f"a multiple of {_product(fixed)}" if None in fixed else str(_product(fixed)),
            found=ranks_text(ranks),
            remedy=suggestion(manifest, ranks, scalars, fixed if free else None),
        )
    values = {**scalars, **mesh_symbols(manifest, sizes)}
    broken = broken_condition(manifest["conditions"], values)
    if broken is not None and (dims := _dims_in(manifest, broken["holds"])):
        raise InputError(
            f"{_written(dims, [scalars[name] for name in dims])} breaks a condition of the program",
            expected=f"{broken['text']} ({broken['place']})",
            found=f"inputs with so many elements along {' and '.join(dims)}",
            remedy="inputs with another number of them",
        )
    if broken is not None:
        raise MeshError(
            f"the mesh ({_written(names, list(sizes))}) breaks a condition of the program",
            expected=f"{broken['text']} ({broken['place']})",
            found=_written([*names, *scalars], [*sizes, *scalars.values()]),
            remedy=suggestion(manifest, ranks, scalars, fixed if free else None),
        )
    wrong = broken_route(manifest["routes"], values)
    if wrong is not None:
        route, how = wrong
        raise MeshError(
            f"with the mesh ({_written(names, list(sizes))}), {how}",
            expected="a permutation in which each rank receives from one rank at most",
            found=f"rank {route['member']} sends to {route['text']} ({route['place']})",
            remedy="other numbers of ranks, or mend the program; spmd.require states the sizes",
        )
    return sizes


def _dims_in(manifest: dict[str, Any], formula: Any) -> list[str]:
    """Return the named dims, whose extents inputs say, in a formula."""
    names = names_in(formula)
    return [name for name in bounded_dims(manifest) if name in names]


def suggestion(
    manifest: dict[str, Any], ranks: int, scalars: dict[str, Any], wanted: list[int | None] | None
) -> str:
    """Return a text with what would work: other ranks for the wanted mesh, other meshes, other
    numbers of ranks."""
    names = [axis["name"] for axis in manifest["mesh"]]
    fixed = [axis["size"] for axis in manifest["mesh"]]

    def works(sizes: tuple[int, ...] | None) -> bool:
        if sizes is None or any(f not in (None, s) for f, s in zip(fixed, sizes, strict=True)):
            return False
        values = {**scalars, **mesh_symbols(manifest, sizes)}
        return broken_condition(manifest["conditions"], values) is None

    if wanted is not None and wanted != fixed:
        every = [_product(wanted)] if None not in wanted else range(1, SUGGESTED_RANKS + 1)
        counts = [n for n in every if works(balanced_sizes(n, wanted))]
        if counts:
            several = len(counts) > 1
            return f"--ranks {'with one of ' if several else ''}{runs_text(counts)}"
    if ranks <= SUGGESTED_RANKS:
        same = [sizes for sizes in factorings(ranks, len(names)) if works(sizes)]
        if same:
            best = min(same, key=lambda sizes: max(sizes) - min(sizes))
            return f"--mesh {_written(names, list(best))}"
    counts = [n for n in range(1, SUGGESTED_RANKS + 1) if works(balanced_sizes(n, fixed))]
    if not counts:
        other = f", or other values: --set {next(iter(scalars))}=…" if scalars else ""
        return f"no number of ranks up to {SUGGESTED_RANKS} satisfies the program{other}"
    return f"one of these numbers of ranks: {runs_text(counts)}"


def runs_text(numbers: list[int], most: int = 16) -> str:
    """Return [1, 2, 3, 4, 9] as "1 to 4, 9"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts[:most]) + (", …" if len(parts) > most else "")


def _product(sizes: list[int | None]) -> int:
    return element_count(size or 1 for size in sizes)


def _written(names: list[str], sizes: list[int | None]) -> str:
    return ",".join(f"{n}={'any' if s is None else s}" for n, s in zip(names, sizes, strict=True))
