"""The documentation's site: `script/docs` builds it, with warnings as errors."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import django

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.test")
django.setup()

project = "django-nrllm"
author = "the django-nrllm project"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "django-nrllm"
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
# The docstrings say 'Raises:' and write code in single backticks.
default_role = "code"
