"""Sphinx's settings for the site; `build.py` gathers the pages and runs it."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

project = "pallasc"
author = "the authors of pallasc"
project_copyright = author
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

html_theme = "furo"
html_title = "pallasc"
html_show_sphinx = False
html_copy_source = False
html_extra_path = ["extra"]

# Docstrings write code with one pair of backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False

# Anchors as on GitHub, so that links to headings work on GitHub and on the site.
myst_heading_anchors = 4
# The lexer does not know all of PTX.
suppress_warnings = ["misc.highlighting_failure"]
