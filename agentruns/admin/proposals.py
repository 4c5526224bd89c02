"""What a person must know about a verdict that needs a second person."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django.utils.translation import gettext as _

from ..conf import conf
from ..deciders import key_of, name_of
from ..enums import Resolution
from .sentences import joined, named, quoted, sentence
from .wording import moment

if TYPE_CHECKING:
    from ..deciders import Decider
    from ..models import AgentRun


def second_person(run: AgentRun, reader: Decider) -> str:
    """What is proposed for this run in doubt, and who is needed now; empty where one decides alone."""
    if not conf.RESOLVE_NEEDS_SECOND_PERSON:
        return ""
    proposal = run.last_proposal()
    if proposal is None:
        return _(
            "Two persons decide here: a first verdict only proposes, and takes effect when another "
            "person gives the same one."
        )
    said = proposal.opinion
    sentences: list[str] = [
        sentence(
            _("%(by)s proposed at %(at)s: %(verdict)s. The reason: %(why)s."),
            by=named(said.by),
            at=moment(proposal.at),
            verdict=said.verdict.label,
            why=quoted(proposal.why.rstrip(" .")),
        )
    ]
    if why := run.why_void(proposal):
        sentences.append(sentence(_("It counts no more: %(why)s. Propose again."), why=quoted(why)))
    elif replace(said, by=name_of(reader), user=key_of(reader)).is_of_the_same_person_as(said):
        sentences.append(_("That was you: another person is needed, who gives the same verdict."))
    elif said.verdict is Resolution.HAPPENED:
        sentences.append(
            _("It takes effect when you give the same verdict with the same result, which you find "
              "out for yourself; anything else is a new proposal.")
        )  # fmt: skip
    else:
        sentences.append(
            _("It takes effect when you give the same verdict; another one is a new proposal.")
        )
    return joined(sentences)
