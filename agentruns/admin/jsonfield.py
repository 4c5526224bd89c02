from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext as _

from ..exceptions import PayloadError
from ..fields import Payload, typed_json


class JsonText(forms.CharField):
    """JSON, typed by a person. What was typed is shown again as it was, also where it is none."""

    widget = forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "class": "vLargeTextField"})

    def __init__(self, **options: Any) -> None:
        super().__init__(strip=False, **options)

    def to_python(self, value: Any) -> Any:
        return "" if value is None else str(value)

    def clean(self, value: Any) -> Any:
        text = super().clean(value)
        if not text.strip():
            return None
        try:
            decoded = typed_json(text)
            Payload.of(decoded)
        except PayloadError as error:
            raise forms.ValidationError(str(error)) from error
        except (ValueError, RecursionError) as error:
            raise forms.ValidationError(
                _("This is not JSON: %(error)s. A text stands in double quotes."),
                params={"error": error},
            ) from error
        return decoded
