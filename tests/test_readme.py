from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from django.db import connection
from psycopg import sql

from tests.markdown import Page
from tests.servers.process import ROOT
from tests.servers.waiting import wait_until
from tests.walkthrough import do

pytestmark = pytest.mark.timeout(700)

A_PROJECT = f"""
{shlex.quote(sys.executable)} -m django startproject myproject .
mkdir myapp
touch myapp/__init__.py
python -m venv venv
. venv/bin/activate
"""
A_VIEW = """
python manage.py shell -v 0 -c "from myapp.orders import refund_order; print(refund_order(7))"
python manage.py list_agent_runs --status completed --json
python manage.py list_tool_effects
"""


@pytest.mark.sqlite
def test_the_example_does_what_it_says(tmp_path: Path) -> None:
    follow(example(), tmp_path, A_PROJECT)


@pytest.mark.postgres
def test_the_example_does_what_it_says_on_postgresql(tmp_path: Path, on_postgres: str) -> None:
    begin, end = "\n# Only on SQLite", "\n```"
    head, _, rest = example().partition(begin)
    follow(head + end + rest.partition(end)[2], tmp_path, A_PROJECT + on_postgres)


def example() -> str:
    text = Page(ROOT / "README.md").text
    return text[text.index("## Use it in your project") : text.index("## Effects")]


def follow(text: str, folder: Path, before: str) -> None:
    page = folder / "example.md"
    page.write_text(text)
    done = do(Page(page).blocks(), folder, project="myproject", before=before, after=A_VIEW)
    assert "charged with " in done.printed
    assert '"agent": "refund"' in done.printed
    assert "undeclared" not in done.printed


@pytest.fixture
def on_postgres() -> Iterator[str]:
    """A project's database on the server of the tests: what puts it into its settings."""
    given = connection.settings_dict
    server = {name: given[name] for name in ("HOST", "PORT", "USER", "PASSWORD")}
    name = f"readme_{secrets.token_hex(4)}"
    settings = {"ENGINE": "django.db.backends.postgresql", "NAME": name, **server}
    with psycopg.connect(
        host=server["HOST"],
        port=server["PORT"],
        user=server["USER"],
        password=server["PASSWORD"],
        dbname="postgres",
        autocommit=True,
    ) as maintenance:
        maintenance.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield f"""
cat >> myproject/settings.py <<'END'
DATABASES = {{"default": {settings!r}}}
END
"""
        end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
        wait_until(
            lambda: not maintenance.execute(end, [name]).fetchall(), what="the last to leave"
        )
        maintenance.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
