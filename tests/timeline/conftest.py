"""Recorded runs that several tests read and none changes."""

import pytest

from strata.timeline.archive.run_lookup import open_timeline
from tests.cli.curved import curved_run
from tests.timeline.planted import Planted, worker


@pytest.fixture(scope="session")
def calm():
    """A run without faults."""
    return Planted()


@pytest.fixture(scope="session")
def crashed():
    """A run in which one worker was killed and replaced."""
    return Planted(lambda sim: worker(sim).exit(137, 9))


@pytest.fixture(scope="session")
def folder(crashed, tmp_path_factory):
    """The data folder of the crashed run."""
    return crashed.saved(tmp_path_factory.mktemp("runs") / "crashed")


@pytest.fixture
def timeline(folder):
    with open_timeline(folder) as opened:
        yield opened


@pytest.fixture(scope="session")
def curved(tmp_path_factory):
    """The folder of a real run with known metrics; its log is in `data`."""
    return curved_run(tmp_path_factory.mktemp("curved"))
