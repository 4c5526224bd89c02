"""What the documentation names exists, and is called as the code wants to be called."""

from __future__ import annotations

import ast
import inspect
import re
import shlex
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from django.apps import apps
from django.conf import global_settings
from django.core.management import CommandParser, get_commands, load_command_class
from django.db.models import TextChoices
from django.utils import translation

from agentruns import enums
from agentruns.conf import Conf
from tests.markdown import Page, pages
from tests.servers.process import ROOT

OURS = ("agentruns", "nrllm")
DJANGO_COMMAND = re.compile(r"(?:python )?manage\.py (\w+)(.*)")
RUN_COMMAND = re.compile(r"(\w+_agent_runs?)\b(.*)")
PATH = re.compile(r"(?:agentruns|nrllm|settings|tests|script|docs|\.ci)/[\w./-]*")
CHECK_ID = re.compile(r"(?:agentruns|nrllm)\.[EWI]\d{3}")
PERMISSION = re.compile(r"(?!agentruns_)[a-z]+_agentrun|view_payload")
CONSTANT = re.compile(r"[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+")
ENVIRONMENT = re.compile(r"\b([A-Z][A-Z0-9_]+)\b")

each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@cache
def parser_of(command: str) -> CommandParser | None:
    app = get_commands().get(command)
    if app is None:
        return None
    return load_command_class(app, command).create_parser("manage.py", command)


@cache
def known_constants() -> frozenset[str]:
    """Settings, values of enumerations, and what the scripts and the model name."""
    members = (
        member.name
        for kind in vars(enums).values()
        if isinstance(kind, type) and issubclass(kind, TextChoices)
        for member in kind
    )
    folders = ("settings", "script", ".ci", "docs/protocol")
    scripts = (file for folder in folders for file in (ROOT / folder).rglob("*"))
    read = (
        name
        for file in scripts
        # Other processes write there meanwhile.
        if "__pycache__" not in file.parts and file.is_file()
        for name in ENVIRONMENT.findall(file.read_text(encoding="utf-8"))
    )
    return frozenset([*Conf.names(), *dir(global_settings), *members, *vars(enums), *read])


@cache
def sources(package: str) -> str:
    """All code of a package."""
    files = (ROOT / package).rglob("*.py")
    return "\n".join(file.read_text(encoding="utf-8") for file in files)


@cache
def permissions() -> frozenset[str]:
    """The names of every permission on a model of ours, as Django makes them."""
    return frozenset(
        f"{model._meta.app_label}.{codename}"
        for model in apps.get_app_config("agentruns").get_models()
        for codename in [
            *(f"{action}_{model._meta.model_name}" for action in model._meta.default_permissions),
            *(codename for codename, _ in model._meta.permissions),
        ]
    )


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each module and name that a piece of code imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""


def resolved(dotted: str) -> Any:
    """Find what a dotted name means: a module, or something in one.

    Raises:
        ImportError, AttributeError: there is no such thing.
    """
    module, _, rest = dotted.partition(".")
    found: Any = import_module(module)
    for name in rest.split(".") if rest else ():
        if inspect.ismodule(found) and not hasattr(found, name):
            found = import_module(f"{found.__name__}.{name}")
        else:
            found = getattr(found, name)
    return found


def refuse_unknown_keywords(call: ast.Call, function: Any) -> None:
    parameters = inspect.signature(function).parameters.values()
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return
    given = {keyword.arg for keyword in call.keywords if keyword.arg}
    assert given <= {one.name for one in parameters}, f"{ast.unparse(call)}: unknown keywords"


@each_page
def test_python_compiles_and_imports_what_exists(page: Page) -> None:
    blocks = list(page.blocks("python"))
    readers = {block.file.partition("/")[0] for block in blocks if block.file}
    for block in blocks:
        where = f"{page.name}:{block.line}"
        tree = ast.parse(block.content, where)
        names: dict[str, Any] = {}
        for module, name in imported(tree):
            if module.partition(".")[0] in readers:
                continue
            assert find_spec(module), f"{where}: there is no module {module}"
            if name:
                names[name] = resolved(f"{module}.{name}")
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                function = names.get(node.func.id)
                if getattr(function, "__module__", "").partition(".")[0] in OURS:
                    refuse_unknown_keywords(node, function)


@each_page
def test_commands_are_called_as_they_can_be(page: Page) -> None:
    for block in (*page.blocks("sh"), *page.blocks("ini")):
        for line in block.content.splitlines():
            for part in re.split(r"\||;|&&|\$\(", line):
                called = DJANGO_COMMAND.search(part.replace(")", ""))
                if called is not None:
                    parser = parser_of(called[1])
                    assert parser, f"{page.name}: there is no command {called[1]}"
                    parser.parse_args(shlex.split(called[2], comments=True))


@each_page
def test_commands_in_the_text_exist_with_their_options(page: Page) -> None:
    for span in page.spans():
        called = DJANGO_COMMAND.fullmatch(span) or RUN_COMMAND.fullmatch(span)
        if called is None:
            continue
        parser = parser_of(called[1])
        assert parser, f"{page.name}: {span}: there is no such command"
        for option in re.findall(r"--[\w-]+", called[2]):
            assert option in parser._option_string_actions, f"{page.name}: {span}"


@each_page
def test_options_in_a_command_s_row_are_its_own(page: Page) -> None:
    for row in page.rows():
        parsers = [parser_of(name) for name in re.findall(r"`(\w+)`", row[0])]
        known = {option for one in parsers if one for option in one._option_string_actions}
        if known:
            named = set(re.findall(r"`(--[\w-]+)", " ".join(row)))
            assert named <= known, f"{page.name}: {row[0]}"


@each_page
def test_links_lead_somewhere(page: Page) -> None:
    for link in page.links():
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.path.parent / path).resolve() if path else page.path
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in Page(target).anchors(), f"{page.name}: {link}"


@each_page
def test_settings_and_other_constants_are_known(page: Page) -> None:
    assigned = re.findall(r"AGENTRUNS = (\{.*?\})", page.text, re.DOTALL)
    named = re.findall(r"AGENTRUNS\[[\"'](\w+)[\"']\]", page.text)
    named += [name for dictionary in assigned for name in re.findall(r'"(\w+)":', dictionary)]
    assert set(named) <= set(Conf.names())
    constants = {span for span in page.spans() if CONSTANT.fullmatch(span)}
    assert constants <= known_constants()


@each_page
def test_names_in_the_text_are_in_the_code(page: Page) -> None:
    for span in page.spans():
        if PATH.fullmatch(span):
            assert (ROOT / span).exists(), f"{page.name}: {span}"
        elif CHECK_ID.fullmatch(span):
            package, _, number = span.partition(".")
            named = {f'"{number}"', f'"{span}"'}
            assert any(name in sources(package) for name in named), f"{page.name}: {span}"
        elif PERMISSION.fullmatch(span):
            assert f"agentruns.{span}" in permissions(), f"{page.name}: {span}"
        elif span.startswith(tuple(f"{package}." for package in OURS)):
            refuse_unknown_name(page, span)


def refuse_unknown_name(page: Page, span: str) -> None:
    if span in permissions():
        return
    expression = ast.parse(span, page.name, mode="eval").body
    if isinstance(expression, ast.Call):
        refuse_unknown_keywords(expression, resolved(ast.unparse(expression.func)))
    else:
        resolved(span)


def test_every_command_is_in_the_readme() -> None:
    ours = {name for name, app in get_commands().items() if app in OURS}
    rows = Page(ROOT / "README.md").rows()
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row[0])}
    assert ours <= listed


def test_every_permission_is_explained_by_the_name_that_django_gives_it() -> None:
    [run] = [
        model for model in apps.get_app_config("agentruns").get_models() if model._meta.permissions
    ]
    with translation.override("en"):
        named = {codename: str(name) for codename, name in run._meta.permissions}
        named["view_agentrun"] = f"Can view {run._meta.verbose_name}"
    rows = Page(ROOT / "docs/operators.md").rows()
    explained = {
        row[0].strip("`"): row[1] for row in rows if PERMISSION.fullmatch(row[0].strip("`"))
    }
    assert explained == named


def test_every_kind_of_event_is_in_the_reference_of_the_signal() -> None:
    rows = Page(ROOT / "docs/api.md").rows()
    listed = [name for row in rows if len(row) == 3 for name in re.findall(r"`(\w+)`", row[0])]
    assert sorted(listed) == sorted(enums.EventKind.values)


@pytest.mark.parametrize("name", ["README.md", "docs/agents.md"])
def test_every_effect_is_explained(name: str) -> None:
    explained = {row[0].split()[0].strip("`") for row in Page(ROOT / name).rows() if row[0]}
    assert set(enums.ToolEffect.values) <= explained


def test_every_claim_about_another_system_has_its_source() -> None:
    rows = [row for row in Page(ROOT / "docs/comparison.md").rows() if set(row[0]) - {"-", " "}]
    claims = [row for row in rows if row[0] not in {"system", "this project"}]
    assert claims
    assert [row for row in claims if "](https://" not in row[1]] == []
