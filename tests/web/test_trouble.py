"""Guards the notices of the page: a coordinator that is down, hangs, has another version or needs a
token; a wrong clock; an unknown view; and the demo."""

import json
import re
import signal
from itertools import chain, repeat

import httpx
import pytest

from tests.cli.conftest import Started, Up, free_port, until
from tests.web.conftest import START_S
from tests.web.test_views import expect, row


@pytest.fixture
def up(tmp_path):
    started = Up(tmp_path)
    yield started
    started.close()


def test_page_reconnects_to_a_restarted_coordinator(page, console_errors, up):
    up.start()
    page.goto(up.url)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    expect(page.get_by_text("strata run examples/counter.py --workers 3")).to_be_visible()
    up.kill()
    expect(page.get_by_text("Disconnected: the coordinator cannot be reached")).to_be_visible()
    expect(page.get_by_role("status").filter(has_text=re.compile("disconnected"))).to_be_visible()
    expect(page.get_by_text(f"{up.url}/api is its address")).to_be_visible()
    expect(page.get_by_role("button", name="strata up")).to_be_visible()
    up.start()
    expect(page.get_by_text("Disconnected")).to_have_count(0)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    console_errors.clear()  # the browser logs failed connections as errors


def test_hanging_coordinator_is_shown_as_disconnected(page, console_errors, up):
    up.start()
    page.goto(up.url)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    up.running.process.send_signal(signal.SIGSTOP)
    try:
        disconnected = page.get_by_text("Disconnected: the coordinator did not answer")
        expect(disconnected).to_be_visible(timeout=60_000)
    finally:
        up.running.process.send_signal(signal.SIGCONT)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Disconnected")).to_have_count(0)
    console_errors.clear()  # the browser logs the broken requests as errors


def test_wrong_token_is_refused_and_the_right_one_opens_the_page(page, console_errors, up):
    up.start("--token", "open-sesame")
    page.goto(up.url)
    expect(page.get_by_role("heading", name="Token required")).to_be_visible()
    page.get_by_label("Token").fill("open-barley")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("alert")).to_have_text("That token is not valid.")
    page.get_by_label("Token").fill("open-sesame")
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    console_errors.clear()  # the browser logs refused requests as errors


def test_wrong_clock_is_reported(page, console_errors, up):
    up.start()
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000;")
    page.goto(up.url)
    expect(page.get_by_text(re.compile("clock is 1 h 0 min ahead"))).to_be_visible()


def test_another_version_offers_a_reload(page, console_errors, up):
    up.start()
    versions = chain(["1.0.0"], repeat("2.0.0"))

    def answer(route):
        coordinator = {"version": next(versions), "mode": "live", "started_at": 0}
        patch = {"mark": "00000000-1", "at": 0, "reset": True, "coordinator": coordinator}
        body = f"retry: 100\n\ndata: {json.dumps(patch)}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/api/live", answer)
    page.goto(up.url)
    expect(page.get_by_text("The coordinator is now 2.0.0")).to_be_visible()


def test_unknown_view_is_reported(page, console_errors, up):
    up.start()
    page.goto(f"{up.url}/#/nowhere")
    expect(page.get_by_text("There is no view “nowhere”")).to_be_visible()


@pytest.fixture
def demo(tmp_path):
    port = free_port()
    started = Started("demo", "--http-port", str(port), "--workers", "8", cwd=tmp_path)
    started.wait_for(lambda it: any("dashboard" in line for line in it.err), "demo", START_S)
    yield f"http://127.0.0.1:{port}"
    started.discard()


def test_demo_is_live_and_labelled(page, console_errors, demo):
    page.goto(demo)
    expect(page.get_by_text("Demo: a simulated cluster; all figures are simulated")).to_be_visible()
    figures = page.get_by_role("region", name="Figures").locator(".text-xl")
    for number in (0, 2, 4):  # the first checkpoint and the first barrier come later
        expect(figures.nth(number)).to_have_text(re.compile(r"^\d*[1-9.]"))
    steps = row(page, "train-1").get_by_role("cell").nth(3)
    expect(steps).to_have_text(re.compile(r"\d"))
    before = steps.inner_text()
    expect(steps).not_to_have_text(before)
    page.goto(f"{demo}/#/timeline")
    expect(page.get_by_role("img", name=re.compile("What 8 workers did"))).to_be_visible()


def test_demo_reports_its_progress_before_it_is_up(tmp_path):
    port = free_port()
    started = Started("demo", "--http-port", str(port), "--workers", "8", cwd=tmp_path)
    try:
        started.wait_for(lambda it: any("dashboard" in line for line in it.err), "demo", START_S)
    finally:
        started.discard()
    assert re.search("simulating .*cluster of 8 workers", started.err[0])
    assert "100% simulated" in "".join(started.err)


def test_demo_samples_are_within_the_shards_of_their_owners(demo):
    with httpx.Client(base_url=f"{demo}/api/datasets/sim", trust_env=False, timeout=20) as client:
        until(lambda: client.get("/preview").json(), START_S)
        shards = {each["shard_id"]: each for each in client.get("/shards?limit=1000").json()}
        for sample in client.get("/preview").json():
            shard = shards[sample["shard_id"]]
            assert shard["start_index"] <= sample["place"] < shard["end_index"]
            assert shard["worker_id"] == sample["worker_id"]


def test_demo_refuses_changes(page, console_errors, demo):
    page.goto(f"{demo}/#/tasks/train-1")
    page.get_by_role("button", name="Checkpoint now").click()
    expect(page.get_by_role("alert")).to_contain_text("this is a demo: nothing can be changed")
    console_errors.clear()  # the browser logs refused requests as errors
