"""A logged value is in the answer of the curves API soon after it was logged, while a client reads.

How soon is measured by benchmarks/bench_curves.py; here the worker's own clock says how often it
sends.
"""

import time

import httpx
import pytest

from strata.sdk.session.heartbeat_thread import SEND_INTERVAL_S
from tests.cli.conftest import until
from tests.cli.runs import url_of

SCRIPT = """
import time
from pathlib import Path
import strata

with strata.join() as run:
    while not Path("enough").exists():
        time.sleep(0.02)
        with run.step() as step:
            step.log(at_s=time.time())
"""


@pytest.fixture
def url(folder, started):
    (folder / "curve.py").write_text(SCRIPT, "utf-8")
    run = started("curve.py", "--workers", "1", "--data-dir", "data")
    run.wait_for(lambda run: any("dashboard" in line for line in run.out), "dashboard")
    yield url_of(run)
    (folder / "enough").touch()
    assert run.ended() == 0


def test_values_of_a_watched_task_arrive_more_often_than_they_are_sent_unwatched(url):
    ages_s: list[float] = []
    with httpx.Client(base_url=f"{url.rstrip('/')}/api/timeline", timeout=20) as client:

        def newest_age_s():
            answer = client.get("/curves", params={"task": "curve-1"})
            found = {each["name"]: each for each in answer.json().get("curves", [])}
            return time.time() - found["at_s"]["last"] if "at_s" in found else None

        def seen_often():
            age_s = newest_age_s()
            ages_s.append(SEND_INTERVAL_S if age_s is None else age_s)
            time.sleep(0.1)
            return len(ages_s) > 20 and max(ages_s[-20:]) < SEND_INTERVAL_S

        until(seen_often, 60)
