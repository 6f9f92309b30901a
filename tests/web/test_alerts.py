"""Guards the bell of the page on a real run: it counts open alerts, works by keyboard, and links
each alert to its subject and to the event that shows its condition."""

import re

import pytest

from tests.cli.conftest import Started
from tests.cli.runs import script, seen, url_of
from tests.web.conftest import START_S
from tests.web.test_views import expect

TRAINING = """
import math, os, time, strata
with strata.join() as run:
    while not os.path.exists("finish"):
        time.sleep(0.02)
        bad = run.steps == 20 or (run.steps > 100 and not os.path.exists("well"))
        run.mark_step(loss=math.nan if bad else 2.0 + 0.1 * math.sin(run.steps))
"""


@pytest.fixture
def run(tmp_path):
    """A run whose loss is NaN from its step 100 on, until the file `well` is there."""
    name = script(tmp_path, TRAINING)
    settings = {"STRATA_ALERT_SETTLE_S": "1"}
    started = Started("run", name, "--workers", "2", cwd=tmp_path, **settings)
    try:
        started.wait_for(seen("dashboard"), "start", START_S)
        yield started
        (tmp_path / "finish").touch()
        assert started.ended() == 0, started.out
    finally:
        started.process.kill()
        started.ended()


def test_bell_counts_alerts_and_links_them_to_subject_and_evidence(
    page, console_errors, run, tmp_path
):
    page.goto(f"{url_of(run)}/#/overview")
    bell = page.get_by_role("button", name="Alerts: 1 open")
    expect(bell).to_be_visible(timeout=60_000)
    expect(page.get_by_role("region", name="Needs attention")).to_contain_text("is NaN at step")
    bell.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Alerts")
    row = dialog.get_by_role("list", name="Open alerts").get_by_role("listitem")
    expect(row).to_have_count(1)
    expect(row).to_contain_text("loss_not_finite")
    expect(row.get_by_role("link", name="task script-1")).to_have_attribute(
        "href", "#/tasks/script-1"
    )
    row.get_by_role("link", name="Event that caused it").click()
    expect(dialog).to_have_count(0)
    expect(page).to_have_url(re.compile(r"#/timeline\?.*event=script-1-w\d"))
    expect(page.get_by_role("complementary")).to_contain_text("loss nan")
    page.get_by_role("button", name="Live").click()
    (tmp_path / "well").touch()
    bell = page.get_by_role("button", name="Alerts: none open")
    expect(bell).to_be_visible(timeout=60_000)
    bell.click()
    ended = page.get_by_role("list", name="Ended alerts")
    expect(ended).to_contain_text("Resolved: the last 10 values of loss are finite")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(bell).to_be_focused()
