"""The body of a transactional write, and what it may not do."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from django.db import connections

from .bodies import Body, inside
from .conf import conf
from .enums import StepOutcome
from .exceptions import AgentRunError, EffectNotApplied, InsideTransaction
from .fields import Payload
from .models import StepCall
from .models.step import Ending


class RolledBack(Exception):
    """Carries what a transactional body raised out of its transaction, which is rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def transactional_body(call: StepCall, body: Body, key: str) -> Ending:
    """Run the body in the open transaction.

    Raises:
        RolledBack: with what the body raised, or why its transaction can't be committed.
    """
    connection = connections[conf.DATABASE]
    opened, savepoint = connection.connection, connection.savepoint()
    try:
        with inside(call), only_this_database():
            value = body(key)
        if connection.connection is not opened or not connection.in_atomic_block:
            raise AgentRunError(f"{call.name}: the body left the transaction of its step")
        if savepoint is not None:
            connection.savepoint_commit(savepoint)
        refuse_what_acts_later(call, value)
        return Ending(StepOutcome.RETURNED, Payload.of(value))
    except EffectNotApplied:
        raise
    except BaseException as error:
        raise RolledBack(error) from error


def refuse_what_acts_later(call: StepCall, value: Any) -> None:
    """Refuse a transactional body that leaves something to do after its record."""
    if inspect.isawaitable(value):
        raise AgentRunError(f"{call.name}: the body of a transactional write returned an awaitable")
    if connections[conf.DATABASE].run_on_commit:
        raise AgentRunError(
            f"{call.name}: a transactional write can't register on_commit callbacks, which would "
            "act after its record; make what they do a step of its own"
        )


def refuse_inside_transaction(call: StepCall) -> None:
    """Refuse a write in `atomic()`: it could be rolled back after the step was recorded."""
    if connections[conf.DATABASE].in_atomic_block:
        raise InsideTransaction(
            f"step {call.name!r} is a write and was called inside atomic(): leave the transaction "
            "first, or declare the step a transactional write"
        )


@contextmanager
def only_this_database() -> Iterator[None]:
    """Refuse statements on other databases: they would not commit with the step."""

    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> NoReturn:
        raise AgentRunError(
            f"a transactional write used database {context['connection'].alias!r}; it commits with "
            f"its step only in {conf.DATABASE!r}"
        )

    others = [alias for alias in connections if alias != conf.DATABASE]
    wrappers = [connections[alias].execute_wrapper(refuse) for alias in others]
    for wrapper in wrappers:
        wrapper.__enter__()
    try:
        yield
    finally:
        for wrapper in wrappers:
            wrapper.__exit__(None, None, None)
