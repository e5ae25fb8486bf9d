"""What a launch asks of a mesh: that conditions hold on it, that permutations are right on it.

In: conditions and routes as manifests have them, what their formulas may name. Out: the first that
is broken, or None.
Always holds: only cheap modules are imported: ranks ask before they start.
"""

from __future__ import annotations

from codegen.image.manifest import evaluate, of_64_bits
from codegen.symbolic.meaning import rows_of, value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

MOST_TRIED = 1 << 14  # members of a permutation


def broken_condition(
    conditions: Sequence[dict[str, Any]], values: dict[str, Any]
) -> dict[str, Any] | None:
    return next((c for c in conditions if not evaluate(c["holds"], values)), None)


def broken_route(
    routes: Sequence[dict[str, Any]], values: dict[str, Any]
) -> tuple[dict[str, Any], str] | None:
    """Return the first permutation that is wrong, of those not proved; and how it is wrong.

    Beyond MOST_TRIED members the engine notices two messages for one rank when they meet.
    """
    for route in routes:
        size, senders = evaluate(route["size"], values), dict[int, int]()
        sends, target = rows_of(route["sends"]), rows_of(route["to"])
        for member in range(size if size <= MOST_TRIED else 0):
            symbols = {**values, route["member"]: member}
            if not value(sends, symbols, of_64_bits):
                continue
            to = value(target, symbols, of_64_bits)
            if not 0 <= to < size:
                return route, f"rank {member} sends to {to}, which does not exist"
            if to in senders:
                return route, f"ranks {senders[to]} and {member} both send to {to}"
            senders[to] = member
    return None
