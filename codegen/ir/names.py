"""Names of a finished Plan: identifiers of C that look like the user's names."""

from __future__ import annotations

from functools import cache

from codegen.ir.fresh import Fresh
from codegen.ir.plan import Plan

# What C, its library and the generated code call things.
_WORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while main errno I r w x member index div abs exp log sin cos "
    "tan pow sqrt floor "
    "ceil round y0 y1 yn j0 j1 jn gamma signal time step load shard reserve from into linux unix "
    "total best begin most where value lane library i j k l t text at end send pull bytes offset "
    "extent row wrap complex NAN INFINITY".split()
)


@cache
def identifier(name: str) -> str:
    """Return a C identifier that looks like the user's name, and is no word of the generated
    code."""
    text = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
    if not text or text[0].isdigit() or text[0] == "_":
        text = f"v{text}"
    numbered = text[0] in "ejpt" and text[1:].isdigit()
    return f"{text}_" if text in _WORDS or numbered else text


def buffer_names(plan: Plan) -> dict[int, str]:
    """Return a C identifier for every buffer and constant, by its id."""
    names = Fresh()
    return {id(b): names.name(identifier(b.name)) for b in (*plan.buffers, *plan.constants)}
