"""Guards the first minutes of a new user: every step of docs/STOPWATCH.md works as it is shown."""

import pytest

from tests.install.environments import ROOT
from tests.install.stopwatch import MOMENTS, SCRIPT, shown, take


@pytest.mark.timeout(600)
def test_new_user_installs_trains_loses_a_worker_recovers_and_asks_why(distribution, tmp_path):
    transcript = take(tmp_path, distribution, cached=True)
    assert transcript.create.code == 0
    assert transcript.install.code == 0, shown(transcript.install)
    assert transcript.run.code == 0, shown(transcript.run)
    assert [line.text for line in transcript.moments()] == [said for said, _ in MOMENTS]
    assert transcript.why.code == 0, shown(transcript.why)
    assert "signal 9" in shown(transcript.why)


def test_page_shows_the_script_and_the_commands_that_are_tested():
    page = (ROOT / "docs" / "STOPWATCH.md").read_text("utf-8")
    assert SCRIPT.strip() in page
    for command in ("strata run train.py --workers 2 --kill 1", "strata why lost"):
        assert f"$ {command}" in page
    assert [said for said, _ in MOMENTS if f"| {said} | " not in page] == []
