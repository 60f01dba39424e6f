"""Sphinx configuration. The pictures are drawn from real tensors before the pages are read."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs.generate import pictures

project = "torch-spyre"
author = "the torch-spyre contributors"
copyright = "the torch-spyre contributors"
version = release = "0.1.0"

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["generate", "pictures"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "torch-spyre"

pictures.main()
