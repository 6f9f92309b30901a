"""Guards past moments: each view shows the moment of the time cursor or says "not recorded",
archived runs are shown like the log, and the recorded demo is labelled."""

import re
from datetime import datetime

import pytest

from tests.cli.conftest import until
from tests.web.test_views import expect, row


@pytest.fixture(scope="module")
def finished(cluster):
    """The archived run of a stopped task."""
    task = cluster.submit("short", workers=1)
    until(lambda: cluster.get(f"tasks/{task}")["committed_steps"] > 3, 120)
    cluster.http.post(f"/api/tasks/{task}/stop").raise_for_status()
    until(lambda: cluster.get(f"tasks/{task}")["status"] == "stopped", 60)
    until(lambda: archived(cluster, task), 60)
    (run,) = archived(cluster, task)
    return run


def archived(cluster, task):
    return [run for run in cluster.get("runs") if run["tasks"] == [task]]


def move_cursor_to_start(page):
    """Move the time cursor to the first recorded moment."""
    page.get_by_role("slider", name="Moment shown").press("Home")
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()


def test_shard_map_shows_the_moment(visit, cluster):
    page = visit("data/noise")
    expect(page.get_by_role("heading", name="Samples in progress")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^sample \d+")).first).to_be_visible()
    assigned = cluster.get("timeline/events", kind="AssignmentChanged")[0]["at_ms"]
    page = visit(f"data/noise?t={assigned:.0f}")
    expect(page.get_by_text(re.compile("Samples are not recorded"))).to_be_visible()
    expect(page.get_by_text(re.compile(r"^sample \d+"))).to_have_count(0)
    expect(page.get_by_role("img", name=re.compile("shards;"))).to_be_visible()
    move_cursor_to_start(page)
    expect(page.get_by_text("There was no dataset noise at this moment")).to_be_visible()


def test_log_ends_at_the_moment(visit, cluster):
    until(lambda: len(cluster.get("logs", task_id=cluster.task)) > 20, 60)
    moment = cluster.get("logs", task_id=cluster.task)[10]["timestamp"]
    page = visit(f"logs?task={cluster.task}&t={moment}")
    expect(page.get_by_role("heading", name=re.compile("Logs .* until "))).to_be_visible()
    times = page.get_by_role("log").locator("time")
    expect(times.first).to_be_visible()
    latest = datetime.fromtimestamp(moment / 1000).strftime("%H:%M:%S.%f")[:-3]
    assert max(times.all_inner_texts()) <= latest


def test_late_arrivals_show_the_moment(visit):
    page = visit("barriers")
    expect(page.get_by_role("heading", name="Late arrivals")).to_be_visible()
    move_cursor_to_start(page)
    expect(page.get_by_role("heading", name="Late arrivals")).to_have_count(0)


def test_unrecorded_values_of_a_past_moment_are_labelled(visit, cluster):
    moment = cluster.get("timeline/events", kind="GenerationChanged")[-1]["at_ms"] + 1000
    page = visit(f"overview?t={moment:.0f}")
    for name in ("Coordinator requests", "Shard assignment"):
        figure = page.get_by_role("heading", name=name).locator("xpath=../..")
        expect(figure.get_by_text("not recorded")).to_have_count(2)
        expect(figure.get_by_text(re.compile(r"^\d"))).to_have_count(0)
    page = visit(f"settings?t={moment:.0f}")
    fact = page.locator("dt", has_text="Worker address").locator("xpath=following-sibling::dd")
    expect(fact).to_have_text("not recorded")


def test_charts_show_the_metrics_before_a_moment(visit, cluster):
    registered = cluster.get("timeline/events", kind="WorkerRegistered")
    with visit("overview").expect_response(re.compile("timeline/metrics")) as answer:
        visit(f"overview?t={registered[-1]['at_ms'] + 1:.0f}")
    assert answer.value.json()["total_workers"][-1] > 0


def test_drag_loads_one_moment_at_a_time_and_ends_at_the_last(visit):
    page = visit("overview")
    strip = page.get_by_role("slider", name="Moment shown")
    box = strip.bounding_box()
    middle = box["y"] + box["height"] / 2
    under_way, most = set(), []

    def begun(request):
        if "/timeline/at" in request.url:
            under_way.add(request.url)
            most.append(len(under_way))

    page.on("request", begun)
    page.on("requestfinished", lambda request: under_way.discard(request.url))
    page.on("requestfailed", lambda request: under_way.discard(request.url))
    page.mouse.move(box["x"] + 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=40)
    page.mouse.up()
    held = int(strip.get_attribute("aria-valuenow"))
    expect(page).to_have_url(re.compile(f"t={held}"))
    expect(page.get_by_role("status").filter(has_text="past")).to_be_visible()
    assert max(most) == 1


def test_worker_charts_start_with_recorded_samples(visit, cluster):
    name = f"{cluster.task}-w0"
    until(lambda: len(cluster.get("timeline/usage", node=name)["at"]) > 5, 60)
    with visit("overview").expect_response(re.compile("timeline/usage")) as answer:
        visit(f"workers/{name}")
    assert len(answer.value.json()["at"]) > 5
    chart = visit(f"workers/{name}").get_by_role("img", name=re.compile("^Step, now"))
    expect(chart).to_be_visible()


def test_archived_run_is_opened_and_left(visit, finished):
    page = visit("timeline")
    (task,) = finished["tasks"]
    page.get_by_label("Run").select_option(task)
    expect(page).to_have_url(re.compile(f"run={finished['name']}"))
    expect(page.get_by_text(finished["name"])).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("workers did"))).to_be_visible()
    page.get_by_role("link", name="Tasks").click()
    expect(row(page, task)).to_contain_text("stopped")
    page.get_by_role("link", name="Workers").click()
    expect(page).to_have_url(re.compile("run="))
    page.get_by_role("button", name="Live").click()
    expect(page).not_to_have_url(re.compile("run="))
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()


@pytest.mark.parametrize("view", ["overview", "workers", "tasks", "checkpoints"])
def test_recorded_demo_plays_and_is_labelled(visit, view):
    page = visit("settings")
    page.get_by_role("switch", name="Play the demo").click()
    expect(page.get_by_text("all figures are simulated")).to_be_visible()
    page.get_by_role("link", name=view.capitalize(), exact=True).click()
    expect(page.get_by_text("all figures are simulated")).to_be_visible()
    expect(row(page, "train-1").first).to_be_visible()
    moment = page.get_by_role("banner").locator("time")
    shown = moment.inner_text()
    expect(moment).not_to_have_text(shown)
    page.get_by_role("button", name="Leave the demo").click()
    expect(page).not_to_have_url(re.compile("run="))
    expect(page.get_by_text("all figures are simulated")).to_have_count(0)


def test_recorded_demo_fills_every_panel(visit):
    page = visit("overview?run=demo&t=1750000200000")
    figures = page.get_by_role("region", name="Figures").locator(".text-xl")
    expect(figures).to_have_count(5)
    for number in range(5):
        expect(figures.nth(number)).to_have_text(re.compile(r"^\d"))
    expect(page.get_by_role("region", name="Log lines")).to_contain_text("finished step")
    page = visit("logs?run=demo&t=1750000200000")
    expect(page.get_by_role("log").get_by_role("button")).not_to_have_count(0)
    page = visit("data/sim?run=demo&t=1750000200000")
    expect(page.get_by_text(re.compile(r"^sample \d+")).first).to_be_visible()
    expect(page.get_by_text("not recorded")).to_have_count(0)


def test_worker_table_fits_a_laptop(visit, cluster):
    page = visit("workers")
    page.set_viewport_size({"width": 1400, "height": 900})
    expect(row(page, f"{cluster.task}-w0")).to_be_visible()
    table = page.get_by_role("table", name="Workers")
    assert table.evaluate("e => e.scrollWidth <= e.clientWidth")
