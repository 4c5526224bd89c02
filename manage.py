#!/usr/bin/env python
from __future__ import annotations

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    # The demonstration, so that `python manage.py runserver` works in a fresh checkout without a
    # database server or a secret. An installation names its own settings.
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings.demo")
    execute_from_command_line(sys.argv)
