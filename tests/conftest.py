"""Shared by all tests: the event loop of coroutine tests (marked `anyio`), and what counts as slow.

Tests of these rooms start real processes or servers, so all of them are left out of the inner loop
(`make test FAST=1`), except those marked `quick`.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLOW_ROOMS = {"agent", "checkpoint", "cli", "interop", "sdk", "storage"}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def pytest_collection_modifyitems(items):
    for item in items:
        room = item.path.relative_to(TESTS).parts[0]
        if room in SLOW_ROOMS and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)
