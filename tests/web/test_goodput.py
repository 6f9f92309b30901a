"""Guards the goodput of a real run with a killed worker in the browser: classes, causes that lead
to their event, prices in the address, and the sums over all runs."""

import re

import pytest

from tests.cli.conftest import until
from tests.web.test_views import expect, row


def losses(cluster):
    return cluster.get("timeline/events", kind="WorkerLost", task=cluster.task)


@pytest.fixture(scope="module")
def priced(cluster):
    """The goodput of a task that lost a worker, as REST has it."""
    if not losses(cluster):
        cluster.kill(f"{cluster.task}-w1")
    until(lambda: losses(cluster), 60)

    def ask():
        return cluster.get("timeline/goodput", task=cluster.task, price="36/worker-hour")

    until(lambda: any(each["kind"] == "WorkerLost" for each in ask()["causes"]), 60)
    return ask()


def test_goodput_shows_classes_with_costs_and_causes(visit, cluster, priced):
    page = visit(f"tasks/{cluster.task}")
    page.get_by_role("main").get_by_role("link", name="Goodput").click()
    table = page.get_by_role("table", name="Classes of worker time")
    expect(table.get_by_role("row").filter(has_text="productive steps")).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("productive steps .* %"))).to_be_visible()
    expect(table.get_by_role("columnheader", name="Cost")).to_have_count(0)
    field = page.get_by_role("textbox", name=re.compile("Price"))
    field.fill("36/worker-hour")
    field.press("Enter")
    expect(table.get_by_role("columnheader", name="Cost")).to_be_visible()
    expect(row(page, "productive steps")).to_contain_text("$")
    assert "price=36%2Fworker-hour" in page.url
    page.reload()
    expect(field).to_have_value("36/worker-hour")


def test_cause_leads_to_its_event_at_its_moment(visit, cluster, priced):
    page = visit(f"goodput/{cluster.task}?price=36/worker-hour")
    loss = page.get_by_role("row").filter(has_text="was declared lost").first
    loss.get_by_role("link").click()
    expect(page.get_by_role("heading", name="WorkerLost")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()


def test_click_on_the_chart_moves_the_time_cursor(visit, cluster):
    page = visit(f"goodput/{cluster.task}")
    chart = page.get_by_role("img", name=re.compile("Worker time by class"))
    expect(chart).to_be_visible()
    page.get_by_role("button", name="Move the time cursor to this moment").click()
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()


def test_all_runs_are_summed_by_run_week_and_host(visit, cluster):
    page = visit("goodput/all-runs?price=20/host-hour")
    table = page.get_by_role("table", name="Goodput by run")
    expect(table.get_by_role("row").filter(has_text=cluster.task)).to_contain_text("$")
    expect(page.get_by_role("table", name="Goodput by week")).to_contain_text(
        re.compile(r"20\d\d-W")
    )
    expect(page.get_by_role("table", name="Goodput by host").get_by_role("row")).to_have_count(2)
