"""How a call's arguments become JSON: what is stored and shown, and what the call is known by."""

from __future__ import annotations

import dataclasses
import inspect
import json
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, get_type_hints

from pydantic import BaseModel, Secret, SecretBytes, SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from agentruns.enums import ToolEffect

from .effects import Declaration
from .exceptions import AgentRefused
from .keys import digest, name_of_type

SECRETS = (Secret, SecretBytes, SecretStr)
ARRAYS = (list, tuple, deque)
# A factory that always makes the same.
CONSTANT_FACTORIES = (list, dict, set, frozenset, tuple, str, int, float, bool, bytes)


@dataclass(frozen=True, slots=True)
class Arguments:
    """Arguments as JSON that is the same in every process.

    `stored` is all of them. `generated` are those that a default factory made while the arguments
    were read, which makes another each time. `unclear` are those of which the JSON does not say
    everything: a masked secret, a type without a JSON form, a field that is not serialized.
    """

    stored: Any
    known_by: Any
    generated: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()

    @property
    def digest(self) -> str | None:
        """What a replay must find again, where that is not simply all that is stored."""
        return digest(self.known_by) if self.generated else None


def arguments_of(
    value: Any, raw: Any = None, function: Callable[..., Any] | None = None
) -> Arguments:
    """Reduce validated arguments; `raw` is what the model gave, `function` what they are for."""
    whole = _Reduction(made_by_factory(function))
    stored = whole.of(value, "", raw)
    if not whole.generated:
        return Arguments(stored, stored, unclear=tuple(whole.unclear))
    known_by = _Reduction(whole.factories, hidden=frozenset(whole.unclear)).of(value, "", raw)
    return Arguments(stored, known_by, tuple(whole.generated), tuple(whole.unclear))


def made_by_factory(function: Callable[..., Any] | None) -> dict[str, FieldInfo]:
    """The parameters of a tool's function that have a default factory."""
    if function is None:
        return {}
    try:
        hints = get_type_hints(inspect.unwrap(function), include_extras=True)
        parameters = inspect.signature(function).parameters
    except (NameError, TypeError, ValueError):
        return {}
    fields = {
        name: FieldInfo.from_annotation(hints[name])
        if parameter.default is parameter.empty
        else FieldInfo.from_annotated_attribute(hints[name], parameter.default)
        for name, parameter in parameters.items()
        if name in hints
    }
    return {name: field for name, field in fields.items() if _generates(field.default_factory)}


def _generates(factory: Any) -> bool:
    return callable(factory) and factory not in CONSTANT_FACTORIES


def refuse_arguments(
    name: str, arguments: Arguments, declaration: Declaration, *, approved: bool
) -> None:
    """Refuse what two calls could be taken for one by, or what other arguments could be made of.

    Raises:
        AgentRefused: says which argument, and what to do.
    """
    once = declaration.once_per_run and declaration.effect is not ToolEffect.READ_ONLY
    if arguments.unclear and (once or approved):
        raise AgentRefused(
            f"the tool {name!r} is {'called once per run' if once else 'approved'} by its arguments, "
            f"and of {_listed(arguments.unclear)} the JSON does not say everything (a secret, a type "
            "without a JSON form, a field that is not serialized as it is): take an id instead, and "
            "look up in the tool's body what it stands for"
        )
    again = declaration.effect is ToolEffect.IDEMPOTENT_WRITE
    if arguments.generated and (again or approved):
        raise AgentRefused(
            f"a default factory makes {_listed(arguments.generated)} of the tool {name!r} anew each "
            "time the arguments are read, so that other arguments would be "
            f"{'approved than used' if approved else 'used by another attempt'}: make it in the "
            "tool's body, from idempotency_key()"
        )


def _listed(paths: tuple[str, ...]) -> str:
    return ", ".join(sorted({repr(path) for path in paths}))


class _Reduction:
    """One walk. With `hidden` it is the second, which leaves out what is generated or unclear."""

    def __init__(
        self, factories: dict[str, FieldInfo], *, hidden: frozenset[str] | None = None
    ) -> None:
        self.factories = factories
        self.generated: list[str] = []
        self.unclear: list[str] = []
        self._hidden = hidden
        self._inside_object = False
        self._lazy = False

    def of(self, value: Any, path: str, raw: Any) -> Any:
        if value is None or (isinstance(value, (bool, int, float, str)) and not _is_enum(value)):
            return value
        if isinstance(value, bytes):
            return _as_text(value)
        if isinstance(value, SECRETS):
            self.unclear.append(path)
            return to_jsonable_python(value)
        if isinstance(value, BaseModel) or _is_dataclass(value):
            return self._object(value, path, raw)
        if isinstance(value, Mapping):
            return self._mapping(value, path, raw)
        if isinstance(value, ARRAYS):
            return [
                self.of(one, f"{path}[{index}]", _item(raw, index, len(value)))
                for index, one in enumerate(value)
            ]
        if isinstance(value, Set):
            return sorted((self.of(one, f"{path}[]", None) for one in value), key=_text)
        return self._leaf(value, path)

    def _leaf(self, value: Any, path: str) -> Any:
        def opaque(unknown: Any) -> str:
            self.unclear.append(path)
            return name_of_type(unknown)

        if isinstance(value, Iterator):
            # To look into it would take it from the body.
            self._lazy = True
            return opaque(value)
        return to_jsonable_python(value, fallback=opaque, inf_nan_mode="constants")

    def _mapping(self, value: Mapping[Any, Any], path: str, raw: Any) -> dict[str, Any]:
        reduced: dict[str, Any] = {}
        outermost = path == ""
        if outermost and len(value) == 1 and isinstance(raw, Mapping):
            # A lone parameter that is an object: the model gives the object itself.
            (name,) = value
            raw = raw if name in raw else {name: raw}
        for key, one in value.items():
            name = next(iter(to_jsonable_python({key: None}, fallback=name_of_type)))
            here = f"{path}.{name}" if path else name
            field = self.factories.get(name) if outermost else None
            if field is not None and _is_missing(field, name, raw) and self._skip(here):
                continue
            reduced[name] = self.of(one, here, _member(raw, name))
        if self._hidden is None and len(reduced) != len(value):
            self.unclear.append(path)
        return reduced

    def _object(self, value: Any, path: str, raw: Any) -> Any:
        """Reduce a model or dataclass by its attributes; what it serializes otherwise is unclear."""
        outermost, self._inside_object = not self._inside_object, True
        reduced = {
            shown: self.of(one, f"{path}.{name}", _member(raw, name))
            for name, shown, one in self._attributes(value, path, raw)
        }
        mine = reduced["root"] if _is_root(value) and "root" in reduced else reduced
        if not outermost:
            return mine
        self._inside_object = False
        lazy, self._lazy = self._lazy, False
        if lazy:
            return mine
        said = to_jsonable_python(value, fallback=name_of_type, inf_nan_mode="constants")
        if not isinstance(said, dict) or not isinstance(mine, dict):
            return self._as_serialized(mine, said, path)
        return {
            name: self._as_serialized(one, said.get(name), f"{path}.{name}")
            for name, one in mine.items()
        }

    def _as_serialized(self, mine: Any, said: Any, path: str) -> Any:
        if self._hidden is not None:
            return None if path in self._hidden else mine
        if _text(_unordered(mine)) == _text(_unordered(said)):
            return mine
        self.unclear.append(path)
        return _unordered(said)

    def _attributes(self, value: Any, path: str, raw: Any) -> Iterator[tuple[str, str, Any]]:
        """Yield name, name in the JSON and value; of what was generated only if it is wanted."""
        for name, shown, field in _fields(value):
            if _generates(field.default_factory):
                given = getattr(value, "model_fields_set", None)
                missing = _is_missing(field, name, raw) if given is None else name not in given
                if missing and self._skip(f"{path}.{name}"):
                    continue
            yield name, shown, getattr(value, name)
        for name, one in (getattr(value, "model_extra", None) or {}).items():
            yield name, name, one

    def _skip(self, path: str) -> bool:
        self.generated.append(path)
        return self._hidden is not None


def _fields(value: Any) -> Iterator[tuple[str, str, Any]]:
    described = getattr(type(value), "__pydantic_fields__", {})
    if isinstance(value, BaseModel):
        for name, field in described.items():
            yield name, field.serialization_alias or name, field
        return
    for plain in dataclasses.fields(value):
        field = described.get(plain.name, plain)
        yield plain.name, getattr(field, "serialization_alias", None) or plain.name, field


def _is_missing(field: Any, name: str, raw: Any) -> bool:
    """Whether the model certainly gave no value."""
    if not isinstance(raw, Mapping):
        return False
    alias = getattr(field, "validation_alias", None)
    return name not in raw and (alias is None or (isinstance(alias, str) and alias not in raw))


def _is_enum(value: Any) -> bool:
    return isinstance(value, Enum)


def _is_dataclass(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def _is_root(value: Any) -> bool:
    return bool(getattr(type(value), "__pydantic_root_model__", False))


def _member(raw: Any, name: str) -> Any:
    return raw.get(name) if isinstance(raw, Mapping) else None


def _item(raw: Any, index: int, length: int) -> Any:
    return raw[index] if isinstance(raw, list) and len(raw) == length else None


def _as_text(value: bytes) -> str:
    """The text that bytes are, or Base64 of them; no two have the same."""
    with suppress(UnicodeDecodeError):
        if not (text := value.decode()).startswith("base64:"):
            return text
    return f"base64:{b64encode(value).decode()}"


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _unordered(value: Any) -> Any:
    """The same JSON, its arrays sorted: a set has no order that two serializations share."""
    if isinstance(value, dict):
        return {name: _unordered(one) for name, one in value.items()}
    if isinstance(value, list):
        return sorted(map(_unordered, value), key=_text)
    return value
