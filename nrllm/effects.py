from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from agentruns.conf import conf
from agentruns.enums import ToolEffect
from agentruns.registry import Answer, WriteInDoubt

Function = TypeVar("Function", bound=Callable[..., Any])

ATTRIBUTE = "__nrllm_declaration__"
METADATA_KEY = "effect"
# Put on each tool by ordering.py, under the name that the model sees; JSON.
RESOLVED_KEY = "nrllm"

# A transactional write is weaker than an idempotent one: it can't leave anything half done.
STRICTNESS = {
    ToolEffect.READ_ONLY: 0,
    ToolEffect.TRANSACTIONAL_WRITE: 1,
    ToolEffect.IDEMPOTENT_WRITE: 2,
    ToolEffect.NON_IDEMPOTENT_WRITE: 3,
}


Verify = Callable[[WriteInDoubt], Answer]


@dataclass(frozen=True, slots=True)
class Declaration:
    """What an author says about a tool.

    `once_per_run`: the same arguments, asked again in one run, are answered from the journal.
    `retry_means_not_applied`: the tool raises `ModelRetry` only before it acts.
    `needs_approval`: a person decides on each call, with its arguments, before it is made.
    `verify`: asks the destination whether a write that was interrupted has happened;
    `verify_is_final`: after it said 'not landed', the destination does not carry out the former
    request any more, however late it arrives: from now on it carries out at most one request with
    this key, or none. The call is made again with the same key; where the destination refuses the
    key, the tool raises `EffectNotApplied`.
    """

    effect: ToolEffect
    once_per_run: bool = False
    retry_means_not_applied: bool = False
    needs_approval: bool = False
    verify: Verify | None = field(default=None, compare=False)
    verify_is_final: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "effect", ToolEffect(self.effect))


@dataclass(frozen=True, slots=True)
class ToolFacts:
    """What can be known about a tool before it runs: where a declaration may come from."""

    name: str
    metadata: Mapping[str, Any] | None = None
    function: Callable[..., Any] | None = None
    annotations_trusted: bool = False
    # Metadata of the same tool that a toolset or a capability around it has written over.
    beneath: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class Resolved:
    """The declaration that holds, and every source that spoke: (source, what it said)."""

    declaration: Declaration
    sources: tuple[tuple[str, Declaration], ...] = ()

    @property
    def declared(self) -> bool:
        return bool(self.sources)

    @property
    def contradicts(self) -> bool:
        return len({said.effect for _, said in self.sources}) > 1


UNDECLARED = Declaration(ToolEffect.NON_IDEMPOTENT_WRITE)


def effect(
    kind: ToolEffect,
    *,
    once_per_run: bool = False,
    retry_means_not_applied: bool = False,
    needs_approval: bool = False,
    verify: Verify | None = None,
    verify_is_final: bool = False,
) -> Callable[[Function], Function]:
    """Declare what a tool's function does to the world. Put it below `@agent.tool`.

    Raises:
        ValueError: `kind` is no `ToolEffect`.
        TypeError: it stands where `kind` was left out.
    """
    if callable(kind):
        name = getattr(kind, "__name__", type(kind).__name__)
        raise TypeError(f"@effect of {name!r} names no effect: write @effect(ToolEffect.READ_ONLY)")
    declaration = Declaration(
        kind,
        once_per_run,
        retry_means_not_applied,
        needs_approval,
        verify,
        verify_is_final,
    )

    def mark(function: Function) -> Function:
        setattr(function, ATTRIBUTE, declaration)
        return function

    return mark


Source = tuple[str, Declaration]
Mapped = Mapping[str, ToolEffect | Declaration]


def effect_of(facts: ToolFacts, mapping: Mapped, heard: tuple[Source, ...] = ()) -> Resolved:
    """Resolve a tool's declaration: the one place that does. Nothing declared is the strictest.

    Where sources contradict each other the strictest effect holds. `heard` is what was said about
    the same tool where more of it could be seen (see ordering.py).
    """
    sources = (*heard, *(one for one in _sources(facts, mapping) if one not in heard))
    if not sources:
        return Resolved(UNDECLARED)
    said = [declaration for _, declaration in sources]
    held = Declaration(
        max((one.effect for one in said), key=STRICTNESS.__getitem__),
        once_per_run=any(one.once_per_run for one in said),
        retry_means_not_applied=any(one.retry_means_not_applied for one in said),
        needs_approval=any(one.needs_approval for one in said),
    )
    asking = next((one for one in said if one.verify is not None), held)
    held = replace(held, verify=asking.verify, verify_is_final=asking.verify_is_final)
    return Resolved(held, sources)


def _sources(facts: ToolFacts, mapping: Mapped) -> list[Source]:
    found: list[Source] = []
    if (declared := _from_metadata(facts.metadata)) is not None:
        found.append(("metadata", declared))
    if (declared := getattr(facts.function, ATTRIBUTE, None)) is not None:
        found.append(("decorator", declared))
    if facts.name in mapping:
        found.append(("mapping", as_declaration(mapping[facts.name])))
    if facts.annotations_trusted and (declared := _from_annotations(facts.metadata)) is not None:
        found.append(("trusted MCP server", declared))
    # What was written over can only make stricter what something else declares.
    for metadata in (_over(facts.metadata, one) for one in facts.beneath if found):
        declared = _from_metadata(metadata)
        if declared is not None and ("metadata", declared) not in found:
            found.append(("metadata", declared))
    return found


def _over(metadata: Mapping[str, Any] | None, beneath: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a layer said; what it did not speak of is as it became further out."""
    return {**(metadata or {}), **beneath}


def as_declaration(said: ToolEffect | Declaration | str) -> Declaration:
    return said if isinstance(said, Declaration) else Declaration(ToolEffect(said))


def _from_metadata(metadata: Mapping[str, Any] | None) -> Declaration | None:
    """Read `metadata={'effect': ...}`. A value that is no effect counts as the strictest."""
    if not metadata or not ({METADATA_KEY, "needs_approval"} & metadata.keys()):
        return None
    said = metadata.get(METADATA_KEY)
    if not isinstance(said, Declaration):
        try:
            said = Declaration(ToolEffect(str(said)))
        except ValueError:
            said = UNDECLARED
    return replace(
        said,
        once_per_run=said.once_per_run or metadata.get("once_per_run") is True,
        retry_means_not_applied=(
            said.retry_means_not_applied or metadata.get("retry_means_not_applied") is True
        ),
        needs_approval=said.needs_approval or metadata.get("needs_approval") is True,
    )


def _from_annotations(metadata: Mapping[str, Any] | None) -> Declaration | None:
    """Read an MCP server's hints (MCP specification, `ToolAnnotations`). No hint is no statement.

    `destructiveHint: false` alone says 'additive', not 'safe to repeat'.
    """
    hints = (metadata or {}).get("annotations")
    if not isinstance(hints, Mapping):
        return None
    if hints.get("readOnlyHint") is True:
        return Declaration(ToolEffect.READ_ONLY)
    if hints.get("idempotentHint") is True:
        return Declaration(ToolEffect.IDEMPOTENT_WRITE)
    return None


def needs_approval(tool_kind: str, declaration: Declaration) -> bool:
    """Whether a person has to allow each call of a tool, whoever said so."""
    writes = declaration.effect is not ToolEffect.READ_ONLY
    return (
        tool_kind == "unapproved"
        or declaration.needs_approval
        or (writes and conf.WRITES_NEED_APPROVAL)
    )
