from __future__ import annotations

from django.apps import AppConfig


class PicturesConfig(AppConfig):
    name = "script.pictures"
    label = "pictures"
    verbose_name = "pictures"
