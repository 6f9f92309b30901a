"""Runs that several tests read; none of them changes one."""

import pytest

from strata.timeline.archive.run_lookup import open_timeline
from tests.timeline.planted import Planted, worker


@pytest.fixture(scope="session")
def calm():
    """Nothing went wrong."""
    return Planted()


@pytest.fixture(scope="session")
def crashed():
    """One worker was killed, and replaced."""
    return Planted(lambda sim: worker(sim).exit(137, 9))


@pytest.fixture(scope="session")
def folder(crashed, tmp_path_factory):
    """The data folder that the crashed run would have left."""
    return crashed.saved(tmp_path_factory.mktemp("runs") / "crashed")


@pytest.fixture
def timeline(folder):
    with open_timeline(folder) as opened:
        yield opened
