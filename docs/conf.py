"""Configuration of the documentation site: `make docs` builds it with Python 3.11 into build/docs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

if sys.version_info < (3, 11):
    raise SystemExit(f"clgraft: got Python {sys.version.split()[0]}, expected 3.11 to build the documentation")

project = "clgraft"
author = "The clgraft developers"
copyright = "The clgraft developers"
try:
    release = importlib.metadata.version("clgraft")
except importlib.metadata.PackageNotFoundError:
    release = "unreleased"

extensions = [
    "myst_nb",  # Markdown and notebooks
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
]

exclude_patterns = ["devices"]  # the files from which devices.py writes a page
html_theme = "furo"
html_title = f"clgraft {release}"
highlight_language = "none"  # fenced blocks name their language

# Notebooks are committed without outputs and executed by tests/test_notebooks.py, not while the site is built.
nb_execution_mode = "off"
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "groupwise"
autodoc_typehints = "none"  # the docstrings state the types
autosummary_generate = False
napoleon_google_docstring = False
napoleon_use_ivar = True  # a class attribute that a docstring describes is documented once
napoleon_use_rtype = False
# Caffe has no wheel for the Python that builds the site.
autodoc_mock_imports = [name for name in ("caffe",) if importlib.util.find_spec(name) is None]

# A link to a page or a heading that the site does not have is a warning of MyST, and `make docs` turns warnings into
# errors. Links to other hosts are not checked, because not every machine that builds the site can reach them.
linkcheck_ignore = [r"https?://"]
