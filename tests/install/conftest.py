"""Fixtures: the built distribution, and a coordinator for workers in other environments."""

import pytest

from tests.coordinator.conftest import coordinator
from tests.install.environments import build


@pytest.fixture(scope="session")
def distribution(tmp_path_factory):
    """The wheel and the source archive of this tree."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture
def hub(tmp_path):
    """A coordinator in this process, which has the newest dependencies."""
    with coordinator(tmp_path / "data") as started:
        yield started
