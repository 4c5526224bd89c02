"""What stands in for the shop's mail server when the crash kit kills the demonstration's workers."""

from __future__ import annotations

from agentruns.testing import report_effect

from . import agents


def mail() -> None:
    """Have e-mails reported instead of sent: for `crash_agent_run --setup`."""
    vars(agents)["send"] = pretend_to_send


def pretend_to_send(to: str, subject: str, body: str, idempotency_key: str) -> None:
    report_effect("e-mail", to=to)
