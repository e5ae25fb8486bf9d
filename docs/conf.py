"""How Sphinx builds these pages: `make docs`. Docstrings come from the code as it is now."""

import inspect
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import generate  # noqa: E402

import spmd  # noqa: E402

project = "spmd"
author = "the authors of spmd"
release = version = spmd.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = f"spmd {release}"
html_static_path = ["_static"]
html_css_files = ["spmd.css"]
html_js_files = ["filter.js"]
html_show_copyright = html_show_sphinx = False
html_copy_source = False
default_role = "code"  # docstrings write `x`, as Markdown does
highlight_language = "none"
pygments_dark_style = "monokai"  # Furo's own one underlines names of modules, as if they were links
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_member_order = "bysource"


def with_directives(app, page, source):
    """Sphinx writes docstrings itself, with an index of names."""
    source[0] = generate.with_directives(source[0])


def signatures(app, what, name, obj, options, signature, returned):
    """Defaults are values. Classes that others make for you have no constructor to show."""
    hidden = signature and what in ("class", "exception") and name not in generate.MADE_BY_USERS
    if hidden:
        return "", returned
    return (generate.signature(obj), returned) if what in ("function", "method") else None


PARAMETERS = re.compile(r"^( *- )(\w+(?:, (?:\w+|…))*)(?= \(|:)")  # "- ranks, mesh: …"


def bold_parameters(app, what, name, obj, options, lines):
    """In lists of what parameters mean, their names are bold."""
    try:
        names = {*inspect.signature(obj).parameters, "…"} if callable(obj) else set()
    except ValueError:
        return
    for k, line in enumerate(lines):
        found = PARAMETERS.match(line)
        if found and names.issuperset(words := found[2].split(", ")):
            bold = ", ".join(f"**{word}**" for word in words)
            lines[k] = f"{found[1]}{bold}{line[found.end():]}"


def setup(app):
    app.connect("source-read", with_directives)
    app.connect("autodoc-process-docstring", bold_parameters)
    app.connect("autodoc-process-signature", signatures)
