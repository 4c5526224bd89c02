from __future__ import annotations

from importlib import resources

import pytest
from playwright.sync_api import Browser, Page

from agentruns.admin.payloads import SHOWN_FENCED
from agentruns.enums import Resolution, StepKind
from agentruns.fields import Payload
from agentruns.models import AgentRun
from tests.agentruns.admin.pages import answer_page, resolve_page
from tests.agentruns.cases import (
    SCHEMA,
    asking,
    completed,
    conf,
    failed,
    interrupted,
    queued,
    reaped,
    writing,
)

from .pressing import press

pytestmark = pytest.mark.browser
ADMIN = "/admin/agentruns/agentrun/"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")


def violations(page: Page) -> list[str]:
    """What axe finds against WCAG 2.2 AA in a page: in what is ours, and in what Django draws around."""
    page.evaluate((resources.files(axe) / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("rules => axe.run({runOnly: {type: 'tag', values: rules}})", RULES)
    return [
        f"{rule['id']}: {node['html']} {node['failureSummary']}"
        for rule in found["violations"]
        for node in rule["nodes"]
    ]


def of_two_operators(page: Page, run: AgentRun) -> dict[str, list[str]]:
    """The pages of a verdict that needs a second person, of what is over, and of what is too long."""
    found = {}
    long = asking(StepKind.APPROVAL, {"body": "x" * SHOWN_FENCED})
    page.goto(answer_page(long))
    press(page, "Approve this call")
    found["too long"] = violations(page)
    with conf(RESOLVE_NEEDS_SECOND_PERSON=True):
        page.goto(resolve_page(run))
        page.get_by_role("radio", name="Leave it").check()
        page.get_by_label("Reason").fill("nobody will miss it")
        press(page, "Give this verdict")
        found["proposed"] = violations(page)
        page.goto(resolve_page(run))
        found["proposed by oneself"] = violations(page)
    page.get_by_role("radio", name="It did not happen").check()
    page.get_by_label("Reason").fill("no mail came")
    digest = run.resolution_digest()
    run.resolve(Resolution.HAPPENED, by="grace", reason="x", digest=digest, result=Payload.of(1))
    press(page, "Give this verdict")
    found["over"] = violations(page)
    return found


# axe is a script: it looks at the pages with JavaScript on.
@pytest.mark.parametrize("page", [True], indirect=True, ids=["with_javascript"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_violation(browser: Browser, page: Page, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    stopped, doubtful, done = interrupted(arguments={"to": "ada"}), reaped(), completed()
    question, approval = asking(arguments={"schema": SCHEMA}), asking(StepKind.APPROVAL)
    retried = failed()
    writing()
    pages = ["", "desk/", "inbox/", "dashboard/", f"{stopped.pk}/change/", f"{done.pk}/change/"]
    urls = ["/admin/agentruns/", *(ADMIN + name for name in pages)]
    urls += [resolve_page(stopped), resolve_page(doubtful)]
    urls += [answer_page(question), answer_page(approval)]
    found = {}
    for url in urls:
        page.goto(url)
        found[url] = violations(page)
    page.goto(resolve_page(doubtful))
    press(page, "Give this verdict")
    found["with errors"] = violations(page)
    found |= of_two_operators(page, doubtful)
    for run, button in (
        (queued(), "Cancel this run"),
        (queued(), "Wake this run"),
        (queued(), "Give this run up"),
        (queued(), "Move this run to another version"),
        (retried, "Retry this run"),
    ):
        page.goto(f"{ADMIN}{run.pk}/change/")
        press(page, button)
        found[button] = violations(page)
    page.goto(f"{ADMIN}dashboard/?window=hour")
    for summary in page.locator("summary").all():
        summary.click()
    found["unfolded"] = violations(page)
    said = [f"{url}: {violation}" for url, lines in found.items() for violation in lines]
    assert not said, "\n".join(said)
