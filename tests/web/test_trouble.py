"""Guards that the page says what is wrong and stays usable: a coordinator that is gone, restarted,
of another version or locked, a clock that is wrong; and that a demo says it is one."""

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


def opened(page, url):
    page.goto(url)
    return page


def test_a_coordinator_that_is_gone_is_told_and_found_again(page, complaints, up):
    up.start()
    opened(page, up.url)
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
    complaints.clear()  # the browser says that it could not connect


def test_a_coordinator_that_hangs_is_shown_as_disconnected(page, complaints, up):
    up.start()
    opened(page, up.url)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    up.running.process.send_signal(signal.SIGSTOP)
    try:
        disconnected = page.get_by_text("Disconnected: the coordinator did not answer")
        expect(disconnected).to_be_visible(timeout=60_000)
    finally:
        up.running.process.send_signal(signal.SIGCONT)
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Disconnected")).to_have_count(0)
    complaints.clear()  # the browser logs the broken requests as errors


def test_a_token_is_asked_for_and_a_wrong_one_refused(page, complaints, up):
    up.start("--token", "open-sesame")
    opened(page, up.url)
    expect(page.get_by_role("heading", name="Token required")).to_be_visible()
    page.get_by_label("Token").fill("open-barley")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_have_text("That token is not valid.")
    page.get_by_label("Token").fill("open-sesame")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    complaints.clear()  # the browser says that requests were refused


def test_a_clock_that_is_wrong_is_told(page, complaints, up):
    up.start()
    page.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000;")
    opened(page, up.url)
    expect(page.get_by_text(re.compile("clock is 1 h 0 min ahead"))).to_be_visible()


def test_another_version_asks_for_a_reload(page, complaints, up):
    up.start()
    versions = chain(["1.0.0"], repeat("2.0.0"))

    def answer(route):
        coordinator = {"version": next(versions), "mode": "live", "started_at": 0}
        patch = {"mark": "00000000-1", "at": 0, "reset": True, "coordinator": coordinator}
        body = f"retry: 100\n\ndata: {json.dumps(patch)}\n\n"
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/api/live", answer)
    opened(page, up.url)
    expect(page.get_by_text("The coordinator is now 2.0.0")).to_be_visible()


def test_an_unknown_view_says_so(page, complaints, up):
    up.start()
    opened(page, f"{up.url}/#/nowhere")
    expect(page.get_by_text("There is no view “nowhere”")).to_be_visible()


@pytest.fixture
def demo(tmp_path):
    port = free_port()
    started = Started("demo", "--http-port", str(port), "--workers", "8", cwd=tmp_path)
    started.wait_for(lambda it: any("dashboard" in line for line in it.err), "demo", START_S)
    yield f"http://127.0.0.1:{port}"
    started.discard()


def test_a_demo_lives_and_says_that_it_is_one(page, complaints, demo):
    opened(page, demo)
    expect(page.get_by_text("Demo: a simulated cluster; all figures are simulated")).to_be_visible()
    figures = page.get_by_role("region", name="Figures").locator(".text-xl")
    for number in (0, 2, 4):  # a save and a barrier come later
        expect(figures.nth(number)).to_have_text(re.compile(r"^\d*[1-9.]"))
    steps = row(page, "train-1").get_by_role("cell").nth(3)
    expect(steps).to_have_text(re.compile(r"\d"))
    before = steps.inner_text()
    expect(steps).not_to_have_text(before)
    opened(page, f"{demo}/#/timeline")
    expect(page.get_by_role("img", name=re.compile("What 8 workers did"))).to_be_visible()


def test_a_demo_says_what_it_is_doing_before_it_is_up(tmp_path):
    port = free_port()
    started = Started("demo", "--http-port", str(port), "--workers", "8", cwd=tmp_path)
    try:
        started.wait_for(lambda it: any("dashboard" in line for line in it.err), "demo", START_S)
    finally:
        started.discard()
    assert "simulating the past of a cluster of 8 workers" in started.err[0]
    assert "100% simulated" in "".join(started.err)


def test_a_demo_shows_samples_within_the_shards_of_their_owners(demo):
    with httpx.Client(base_url=f"{demo}/api/datasets/sim", trust_env=False, timeout=20) as client:
        until(lambda: client.get("/preview").json(), START_S)
        shards = {each["shard_id"]: each for each in client.get("/shards?limit=1000").json()}
        for sample in client.get("/preview").json():
            shard = shards[sample["shard_id"]]
            assert shard["start_index"] <= sample["place"] < shard["end_index"]
            assert shard["worker_id"] == sample["worker_id"]


def test_a_demo_changes_nothing(page, complaints, demo):
    opened(page, f"{demo}/#/tasks/train-1")
    page.get_by_role("button", name="Checkpoint now").click()
    expect(page.get_by_role("alert")).to_contain_text("this is a demo: nothing can be changed")
    complaints.clear()  # the browser says that the request was refused
