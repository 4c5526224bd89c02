"""Exceptions that fail, lie or never end when somebody looks at them: what a stranger may raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentruns.exceptions import GivenBack, LeaseLost, Parked


def fails(with_what: type[BaseException] = RuntimeError) -> Any:
    def fail(*_: Any) -> Any:
        raise with_what("not today")

    return fail


def gives(value: Any) -> Any:
    return lambda *_: value


class FailingText(str):
    __slots__ = ()
    replace = encode = __str__ = fails(SystemExit)


def strange(name: str, method: Any, **more: Any) -> Callable[[], BaseException]:
    """An error of a class of this name with one attribute of its own."""
    return lambda: type("Strange", (Exception,), {name: method, **more})("strange")


def attribute(name: str, method: Any) -> Callable[[], BaseException]:
    return strange(name, property(method))


class NamelessKind(type):
    __name__ = property(fails(SystemExit))


def nameless() -> BaseException:
    error: BaseException = NamelessKind("Strange", (Exception,), {})("strange")
    return error


def chained(length: int = 5_000) -> BaseException:
    error = ValueError("number 0")
    for number in range(1, length):
        former, error = error, ValueError(f"number {number}")
        error.__cause__ = former
    return ExceptionGroup("a long chain", [error])


def nested(depth: int = 2_000) -> BaseException:
    error: Exception = ValueError("the innermost")
    for number in range(depth):
        error = ExceptionGroup(f"level {number}", [error])
    return error


def too_deep() -> BaseException:
    def deeper(number: int) -> int:
        return deepest(number + 1) + 1

    def deepest(number: int) -> int:
        return deeper(number + 1) + 1

    try:
        deeper(0)
    except RecursionError as error:
        return error
    raise AssertionError


STRANGE: dict[str, Callable[[], BaseException]] = {
    "class fails": attribute("__class__", fails()),
    "class exits": attribute("__class__", fails(SystemExit)),
    "claims to have parked": attribute("__class__", gives(Parked)),
    "claims to be a lost lease": attribute("__class__", gives(LeaseLost)),
    "claims to be given back": attribute("__class__", gives(GivenBack)),
    "claims to exit": attribute("__class__", gives(SystemExit)),
    "cause fails": attribute("__cause__", fails()),
    "cause interrupts": attribute("__cause__", fails(KeyboardInterrupt)),
    "cause is an exit": attribute("__cause__", lambda _: SystemExit(1)),
    "context fails": attribute("__context__", fails(SystemExit)),
    "suppression fails": attribute("__suppress_context__", fails(KeyboardInterrupt)),
    "notes fail": attribute("__notes__", fails(SystemExit)),
    "attributes fail": strange("__getattribute__", fails(SystemExit)),
    "text fails": strange("__str__", fails()),
    "text exits": strange("__str__", fails(SystemExit)),
    "text interrupts": strange("__str__", fails(KeyboardInterrupt)),
    "text is no text": strange("__str__", gives(7)),
    "text is strange": strange("__str__", gives(FailingText("strange"))),
    "representation exits": strange("__repr__", fails(SystemExit), __str__=Exception.__repr__),
    "name fails": nameless,
    "truth fails": strange("__bool__", fails(SystemExit)),
    "is false": strange("__len__", gives(0)),
    "megabyte": lambda: ValueError("\x00\udfff" + "x" * 1_000_000),
    "thousands": lambda: ExceptionGroup("many", [ValueError(f"{n}" * 99) for n in range(5_000)]),
    "chain": chained,
    "nested": nested,
    "recursion": too_deep,
}
