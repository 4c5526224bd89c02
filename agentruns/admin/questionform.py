"""A form made from the JSON schema that a question carries; anything else is answered as JSON."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .boundform import BoundForm
from .jsonfield import JsonText
from .payloads import harmless

MAX_FIELDS = 100
# More choices than these are no list that a person looks through; a page must not hold them all.
MAX_CHOICES = 500
MAX_CHOICES_BYTES = 100_000
# A limit that is no real one, such as an infinity, is left to the check of the whole answer.
LARGEST = 10**15
WHOLE = "answer"


class AnswerForm(BoundForm):
    """The answer to a question; `digest` is that of the question that was shown."""

    def __init__(self, question: Any, data: Any = None, **options: Any) -> None:
        super().__init__(data, **options)
        self.properties = properties_of(question)
        if self.properties is None:
            whole = question.get("schema") if isinstance(question, dict) else None
            self.fields[WHOLE] = field_of(_("Answer"), whole, required=True)
            return
        for number, (name, schema, required) in enumerate(self.properties):
            self.fields[f"answer_{number}"] = field_of(name, schema, required=required)

    def answer(self) -> Any:
        """The valid answer as JSON; properties that were left empty are left out."""
        if self.properties is None:
            return self.cleaned_data[WHOLE]
        given: dict[str, Any] = {}
        for number, (name, _schema, required) in enumerate(self.properties):
            value = self.cleaned_data[f"answer_{number}"]
            # A null that was chosen or typed is an answer; nothing is none.
            typed = str(self[f"answer_{number}"].data or "").strip()
            if required or typed or value not in ("", None):
                given[name] = value
        return given


def properties_of(question: Any) -> list[tuple[str, Any, bool]] | None:
    """Name, schema and necessity of each property; None where the schema is not an object's."""
    schema = question.get("schema") if isinstance(question, dict) else None
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return None
    properties = schema["properties"]
    if not properties or len(properties) > MAX_FIELDS:
        return None
    needed = schema.get("required")
    required = needed if isinstance(needed, list) else []
    return [(name, property_, name in required) for name, property_ in properties.items()]


def field_of(name: str, schema: Any, *, required: bool) -> forms.Field:
    """A field for a string, number, boolean or enum; for everything else one that takes JSON."""
    said = schema if isinstance(schema, dict) else {}
    common: dict[str, Any] = {
        "label": harmless(str(said.get("title") or name)),
        "help_text": harmless(str(said.get("description") or "")),
        "required": required,
    }
    choices = said.get("enum")
    if isinstance(choices, list) and choices:
        return EnumField(choices, **common) if is_short(choices) else json_field(common)
    kind = said.get("type")
    if kind == "string":
        return string_field(said, common)
    if kind == "integer":
        return forms.IntegerField(**common, **bounds(said, "minimum", "maximum"))
    if kind == "number":
        return forms.FloatField(**common, **bounds(said, "minimum", "maximum"))
    if kind == "boolean":
        return forms.BooleanField(**{**common, "required": False})
    return json_field(common)


def json_field(common: dict[str, Any]) -> forms.Field:
    if not common["help_text"]:
        common["help_text"] = gettext_lazy("As JSON; a text stands in double quotes.")
    return JsonText(**common)


def is_short(choices: list[Any]) -> bool:
    return len(choices) <= MAX_CHOICES and len(json.dumps(choices)) <= MAX_CHOICES_BYTES


def string_field(schema: dict[str, Any], common: dict[str, Any]) -> forms.Field:
    limits = bounds(schema, "minLength", "maxLength")
    sizes: dict[str, Any] = {
        key.replace("value", "length"): int(limit) for key, limit in limits.items()
    }
    longest = sizes.get("max_length", 1000)
    widget = forms.TextInput() if longest <= 200 else forms.Textarea(attrs={"rows": 3})
    return forms.CharField(strip=False, widget=widget, **common, **sizes)


def bounds(schema: dict[str, Any], least: str, most: str) -> dict[str, Any]:
    given = {"min_value": schema.get(least), "max_value": schema.get(most)}
    return {
        key: limit
        for key, limit in given.items()
        if isinstance(limit, (int, float))
        and not isinstance(limit, bool)
        and -LARGEST < limit < LARGEST  # neither is true of NaN
    }


class EnumField(forms.TypedChoiceField):
    """One of a list of JSON values, each posted as its JSON."""

    def __init__(self, values: list[Any], **options: Any) -> None:
        shown = [(json.dumps(value), harmless(str(value))) for value in values]
        choices = shown if options["required"] else [("", "—"), *shown]
        super().__init__(choices=choices, coerce=json.loads, empty_value=None, **options)
