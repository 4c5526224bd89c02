from __future__ import annotations

import http.client
import json
import os
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

# Longer than any test takes: who is held is let go by it, or killed.
HOLD_SECONDS = 3600


class Refused(RuntimeError):
    """A server of this package answered with an error."""


class JsonClient:
    """Talk to a `JsonServer`: a connection a call, so that threads and forks may share it."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url).netloc

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = 120) -> Any:
        connection = http.client.HTTPConnection(self.address, timeout=timeout)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise Refused(f"{method} {path}: {response.status} {answer}")
        return answer

    def get(self, path: str, *, timeout: float = 120) -> Any:
        return self.call("GET", path, timeout=timeout)

    def post(self, path: str, body: Any = None, *, timeout: float = 120) -> Any:
        return self.call("POST", path, {} if body is None else body, timeout=timeout)


class RecorderClient(JsonClient):
    """The independent witness, as seen from a test and from the processes that a test kills."""

    def body(self, name: str, key: str, **more: Any) -> None:
        """Report that the body of a step starts now, in this process."""
        self.post("/bodies", {"name": name, "key": key, "pid": os.getpid(), **more})

    def bodies(self, name: str | None = None, **wanted: Any) -> list[dict[str, Any]]:
        """Return the reported bodies in their order: those called `name`, or all of them."""
        return self.found("bodies", **wanted, **({} if name is None else {"name": name}))

    def effect(self, name: str, **facts: Any) -> None:
        """Report that something happened in the world."""
        self.post("/effects", {"name": name, "pid": os.getpid(), **facts})

    def effects(self, **wanted: Any) -> list[dict[str, Any]]:
        return self.found("effects", **wanted)

    def point(self, **facts: Any) -> None:
        """Report that a boundary was reached."""
        self.post("/points", facts)

    def points(self, **wanted: Any) -> list[dict[str, Any]]:
        return self.found("points", **wanted)

    def found(self, what: str, **wanted: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(f"/{what}?{urlencode(wanted)}")
        return found

    def count(self, name: str) -> int:
        return len(self.bodies(name))

    def hold(self, point: str) -> Any:
        """Wait here if the test has armed `point`; return the answer that it was armed with."""
        path = f"/hold/{quote(point, safe='')}"
        return self.post(path, {"pid": os.getpid()}, timeout=HOLD_SECONDS)["answer"]

    def arm(
        self, point: str, *, times: int = 1, skip: int = 0, block: bool = True, answer: Any = None
    ) -> None:
        """Act on the next `times` arrivals at `point`, after letting `skip` of them pass.

        An arrival that is acted on is given `answer`, at once or, with `block`, when released.
        """
        self.post(
            f"/arm/{quote(point, safe='')}",
            {"times": times, "skip": skip, "block": block, "answer": answer},
        )

    def wait_reached(self, point: str, *, arrival: int = 1, timeout: float = 120) -> int:
        """Wait until `point` was reached for the `arrival`-th time; return the process that did."""
        path = f"/reached/{quote(point, safe='')}?arrival={arrival}&timeout={timeout}"
        return int(self.get(path, timeout=timeout + 10)["pid"])

    def arrivals(self, point: str) -> int:
        """Return how often somebody was acted on at `point`."""
        return int(self.get(f"/arrivals/{quote(point, safe='')}")["count"])

    def release(self, point: str) -> None:
        """Let go whoever waits at `point`, and nobody waits there from now on."""
        self.post(f"/release/{quote(point, safe='')}")

    def reset(self) -> None:
        self.post("/reset")
