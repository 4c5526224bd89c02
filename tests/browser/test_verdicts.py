from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from agentruns.enums import RunStatus, StepKind, StepState
from agentruns.models import AgentRun, Step
from agentruns.segment import Segment
from agentruns.tasks import execute
from tests.agentruns.cases import SCHEMA, answered, asking, interrupted
from tests.factories import execute_again, registered
from tests.harness.runs import reread

from .pressing import press

pytestmark = pytest.mark.browser


def one_write(segment: Segment) -> object:
    return segment.step("send", lambda key: {"sent": "again"})


def to_the_verdict(page: Page, run: AgentRun) -> None:
    """Walk from the list over the desk to the page of the verdict."""
    page.goto("/admin/agentruns/agentrun/")
    page.get_by_role("link", name="The operator's desk").click()
    section = page.get_by_role("region", name="Interrupted writes")
    section.get_by_role("link", name=str(run.uuid)).click()
    page.get_by_role("link", name="Decide on this write").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Decide on an interrupted write")


@pytest.mark.parametrize(
    ("verdict", "output"),
    [("It happened", {"id": 7}), ("It did not happen", {"sent": "again"})],
)
def test_from_the_list_to_the_completed_run(page: Page, verdict: str, output: object) -> None:
    with registered(one_write) as agent:
        run = interrupted(agent=agent)
    to_the_verdict(page, run)
    page.get_by_role("radio", name=verdict).check()
    if output == {"id": 7}:
        page.get_by_role("textbox", name="Result").fill("{id: 7}")
        page.get_by_label("Reason").fill("the bank has it")
        page.get_by_role("button", name="Give this verdict").click()
        expect(page.locator(".errorlist")).to_contain_text("This is not JSON")
        expect(page.get_by_label("Reason")).to_have_value("the bank has it")
        expect(page.get_by_role("textbox", name="Result")).to_have_value("{id: 7}")
        page.get_by_role("textbox", name="Result").fill('{"id": 7}')
    page.get_by_label("Reason").fill("the bank has it")
    press_where_registered(page, run, "Give this verdict")
    expect(page.locator(".messagelist")).to_contain_text("Your verdict was taken.")
    done = execute_again(reread(run), one_write)
    assert done.status == RunStatus.COMPLETED
    page.reload()
    expect(page.locator("#content")).to_contain_text("the bank has it")
    expect(page.locator("#content")).to_contain_text("completed")
    assert AgentRun.objects.get(pk=run.pk).output.value == output


def press_where_registered(page: Page, run: AgentRun, button: str) -> None:
    """Press a button while the run's agent is registered, as it is where an application runs."""
    from agentruns import registry

    registry.add(registry.RegisteredAgent(run.agent, one_write))
    try:
        press(page, button)
    finally:
        del registry._agents[run.agent]


def test_a_write_is_left_and_leaves_the_desk(page: Page) -> None:
    run = interrupted()
    to_the_verdict(page, run)
    page.get_by_role("radio", name="Leave it").check()
    page.get_by_label("Reason").fill("nobody will miss it")
    page.get_by_role("button", name="Give this verdict").click()
    expect(page.locator(".agentruns-known")).to_contain_text("ada closed it as it is")
    page.goto("/admin/agentruns/agentrun/desk/")
    expect(page.locator("#content")).not_to_contain_text(str(run.uuid))


def test_a_verdict_is_given_with_the_keyboard(page: Page) -> None:
    run = interrupted()
    to_the_verdict(page, run)
    page.get_by_role("radio", name="It happened").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("radio", name="It did not happen")).to_be_checked()
    page.get_by_label("Reason").focus()
    page.keyboard.type("the bank has nothing")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Your verdict was taken.")
    assert Step.objects.get(run=run).state == StepState.NOT_APPLIED


@pytest.mark.parametrize("decision", ["Approve this call", "Deny this call"])
def test_a_call_is_decided_on_in_the_inbox(page: Page, decision: str) -> None:
    run = asking(StepKind.APPROVAL, {"to": "<b>Ada</b>"})
    page.reload()
    page.get_by_role("link", name="The inbox").click()
    page.get_by_role("link", name="Decide: ask").click()
    expect(page.locator(".agentruns-asked")).to_contain_text('"to": "<b>Ada</b>"')
    page.get_by_label("Note").fill("as agreed")
    page.get_by_role("button", name=decision).click()
    expect(page.locator("#content")).to_contain_text("Nobody is waited for.")
    assert answered(run)["approved"] is (decision == "Approve this call")


def test_a_question_is_answered_in_the_form_of_its_schema(page: Page) -> None:
    run = asking(arguments={"question": "who?", "schema": SCHEMA})
    page.goto("/admin/agentruns/agentrun/inbox/")
    page.get_by_role("link", name="Answer: ask").click()
    page.get_by_label("Full name").fill("Ada")
    page.get_by_role("spinbutton", name="age").fill("-1")
    page.get_by_role("button", name="Give this answer").click()
    expect(page.locator(".errorlist")).to_contain_text("greater than or equal to 0")
    expect(page.get_by_label("Full name")).to_have_value("Ada")
    page.get_by_role("spinbutton", name="age").fill("36")
    page.get_by_role("button", name="Give this answer").click()
    expect(page.locator(".messagelist")).to_contain_text("Your answer was taken.")
    assert answered(run) == {"name": "Ada", "age": 36, "colour": "red", "sure": False}
    assert reread(run).status == RunStatus.QUEUED
    execute(str(run.uuid))
