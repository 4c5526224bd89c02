from __future__ import annotations

from typing import Any

from agentruns.testing.client import JsonClient


class SmtpClient(JsonClient):
    """The control port of the SMTP server."""

    def messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = self.get("/messages")
        return messages

    def hold(self, recipient: str = "") -> None:
        """Withhold the reply to DATA from mail to `recipient` ('': everybody) that has arrived."""
        self.post("/hold", {"recipient": recipient})

    def wait_held(self, count: int = 1, *, timeout: float = 120) -> None:
        """Wait until `count` messages were written down and their replies withheld."""
        self.get(f"/held?count={count}&timeout={timeout}", timeout=timeout + 10)

    def release(self) -> None:
        self.post("/release")


class WireClient(JsonClient):
    """The control routes of a model endpoint, OpenAI's or Anthropic's."""

    def script(
        self, conversations: dict[str, Any], faults: list[dict[str, Any]] | None = None
    ) -> None:
        """Replace the script; see `tests.servers.script` for its form."""
        self.post("/script", {"conversations": conversations, "faults": faults or []})

    def requests(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = self.get("/requests")
        return requests

    def wait_held(self, count: int = 1, *, timeout: float = 120) -> None:
        self.get(f"/held?count={count}&timeout={timeout}", timeout=timeout + 10)

    def release(self) -> None:
        self.post("/release")
