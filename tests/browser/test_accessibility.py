from __future__ import annotations

from importlib import resources

import pytest
from playwright.sync_api import Browser, Page

from agentruns.enums import StepKind
from tests.agentruns.admin.test_inbox import SCHEMA, answer_page, asking
from tests.agentruns.admin.test_resolve import reaped, resolve_page
from tests.agentruns.cases import completed, failed, interrupted, writing

pytestmark = pytest.mark.browser
ADMIN = "/admin/agentruns/agentrun/"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA in the part of a page that is ours."""
    page.evaluate((resources.files(axe) / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate(
        "rules => axe.run('#content', {runOnly: {type: 'tag', values: rules}})", RULES
    )
    return [
        f"{rule['id']}: {node['html']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


# axe is a script: it looks at the pages with JavaScript on.
@pytest.mark.parametrize("page", [True], indirect=True, ids=["with_javascript"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation(browser: Browser, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    stopped, doubtful, done = interrupted(arguments={"to": "ada"}), reaped(), completed()
    question, approval = asking(arguments={"schema": SCHEMA}), asking(StepKind.APPROVAL)
    failed()
    writing()
    pages = ["", "desk/", "inbox/", f"{stopped.pk}/change/", f"{done.pk}/change/"]
    urls = [ADMIN + name for name in pages]
    urls += [resolve_page(stopped), resolve_page(doubtful)]
    urls += [answer_page(question), answer_page(approval)]
    found = {}
    for url in urls:
        page.goto(url)
        found[url] = violations(page)
    page.goto(resolve_page(doubtful))
    page.get_by_role("button", name="Give this verdict").click()
    found["with errors"] = violations(page)
    said = [f"{url}: {violation}" for url, lines in found.items() for violation in lines]
    assert not said, "\n".join(said)
