"""Build the documentation: see docs/README.md for what is written by hand and what is made from the code."""

from __future__ import annotations

import sys
from pathlib import Path

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_extensions"), str(DOCS.parent / "test_support")]

from launching import forking_python  # noqa: E402

_forking = forking_python()  # programs that pages and tutorials start: dozens, of which each would import torch anew
_forking.__enter__()

project = "camshaft"
author = "the camshaft authors"
copyright = "the camshaft authors, Apache-2.0"  # the name that Sphinx reads

extensions = [
    "hook_pages",
    "myst_parser",
    "benchmark_tables",
    "example_runs",
    "repository_links",
    "shared_navigation",
    "names_in_text",
    "api_pages",
    "command_pages",
    "error_pages",
    "gallery",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["README.md", "_build", "_extensions", "tutorials_source"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "name"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

sphinx_gallery_conf = {
    "examples_dirs": "tutorials_source",
    "gallery_dirs": "tutorials",
    "filename_pattern": ".*",  # runs all
    "within_subsection_order": "gallery.ReadingOrder",
    "reset_modules": ("gallery.prepare",),
    "abort_on_example_error": True,
    "capture_repr": (),  # a reader who runs the program sees no more
    "notebook_extensions": set(),
    "download_all_examples": False,
    "remove_config_comments": True,
    "write_computation_times": False,
    "min_reported_time": 3600,
    "show_memory": False,
    "show_signature": False,
}

html_theme = "furo"
html_title = "camshaft"
html_static_path = ["_static"]
html_copy_source = False
html_show_sphinx = False
