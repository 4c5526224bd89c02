from __future__ import annotations

from agentruns.enums import FailureClass


class DestinationUnavailable(Exception):
    """The other side answered 503: this application knows that it may be asked again later."""


class DestinationBroken(Exception):
    """An error about which nobody has said anything."""


def classify(error: BaseException) -> FailureClass | None:
    return FailureClass.TRANSIENT if isinstance(error, DestinationUnavailable) else None
