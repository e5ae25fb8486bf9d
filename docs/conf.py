"""How Sphinx builds these pages: `make docs`. Pages that are made from the code come first."""

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
exclude_patterns = ["_generated"]
default_role = "code"  # docstrings write `x`, as Markdown does
highlight_language = "none"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"

generate.write(HERE / "_generated")

MADE_BY_USERS = ("spmd.Dim",)


def without_arguments(app, what, name, obj, options, signature, returned):
    """Classes that others make for you have no constructor to show."""
    hidden = signature and what in ("class", "exception") and name not in MADE_BY_USERS
    return ("", returned) if hidden else None


def setup(app):
    app.connect("autodoc-process-signature", without_arguments)
