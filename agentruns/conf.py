from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

from django.conf import settings

T = TypeVar("T")


class Setting(Generic[T]):
    """One key of the `AGENTRUNS` dictionary, read at each access, with its default."""

    def __init__(self, default: T) -> None:
        self.default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Setting[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Setting[T] | T:
        if instance is None:
            return self
        value: T = overrides().get(self.name, self.default)
        return value


def overrides() -> dict[str, Any]:
    return getattr(settings, "AGENTRUNS", {})


class Conf:
    """Every setting of the app. Override them in `AGENTRUNS = {...}`; `manage.py check` judges them."""

    # The database alias that holds the runs.
    DATABASE = Setting("default")
    # How a due run is made known to workers: a dotted path to a Dispatcher.
    DISPATCHER = Setting("agentruns.dispatch.django_q.DjangoQDispatcher")

    # How long a claim lasts without renewal: the time after which a dead worker's run is reaped.
    LEASE_SECONDS = Setting(60.0)
    # How often a segment renews its lease; a third of the lease or less.
    HEARTBEAT_SECONDS = Setting(15.0)
    # For how long after its last recorded step a segment may go on renewing: what hangs longer
    # than this is reaped.
    MAX_STEP_SECONDS = Setting(600.0)
    # How long the end of a step is tried to be recorded, on new connections, before it is given up.
    RECORD_RETRY_SECONDS = Setting(30.0)
    # How long the tasks of an interrupted segment are given to end before the run is left to the
    # reaper.
    END_GRACE_SECONDS = Setting(5.0)

    # How many times a run may be taken back and executed again before it is dead-lettered.
    MAX_REQUEUES = Setting(3)
    # The delay before the first retry; doubled for each further one, with jitter, up to the maximum.
    RETRY_BACKOFF_SECONDS = Setting(5.0)
    RETRY_BACKOFF_MAX_SECONDS = Setting(600.0)
    # After how long a due run that nobody took is woken again; doubles each time up to the maximum.
    WAKE_AGAIN_SECONDS = Setting(60.0)
    WAKE_AGAIN_MAX_SECONDS = Setting(3600.0)
    # After how long a due run that no worker took is shown as not taken.
    UNTAKEN_SECONDS = Setting(600.0)

    # Whether every write (whatever its effect) needs a person's approval.
    WRITES_NEED_APPROVAL = Setting(False)
    # Whether the person who asked for a run may approve its calls.
    REQUESTER_MAY_APPROVE = Setting(True)
    # Whether a person's verdict on an interrupted write takes effect only when another person gives
    # the same one. Where REQUESTER_MAY_APPROVE is off, who asked for the run can't be the second.
    RESOLVE_NEEDS_SECOND_PERSON = Setting(False)
    # Whether every attempt at a write needs a decision of its own, or one serves all of them.
    APPROVAL_PER_ATTEMPT = Setting(False)

    # How often a destination is asked about a write in doubt, and how long to wait before the second
    # time; doubled for each further one.
    VERIFY_ATTEMPTS = Setting(8)
    VERIFY_BACKOFF_SECONDS = Setting(30.0)

    # The largest payload (request, arguments, result, output) in bytes of JSON.
    MAX_PAYLOAD_BYTES = Setting(10 * 1024 * 1024)
    # Keys (Fernet's) with which payloads are encrypted at rest: the first encrypts, each decrypts. ''
    # in the first place stores plain.
    ENCRYPTION_KEYS: Setting[list[str]] = Setting([])
    # A dotted path to a function from (what, value) to the value that may be shown or kept as a text.
    REDACT = Setting("")
    # Dotted paths to functions from an exception to a Failure, a FailureClass or None (not mine).
    FAILURE_CLASSIFIERS: Setting[list[str]] = Setting([])

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(name for name, value in vars(cls).items() if isinstance(value, Setting))


conf = Conf()
