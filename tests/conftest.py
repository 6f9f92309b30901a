"""Shared by all tests: the event loop of coroutine tests (marked `anyio`), and what counts as slow.

Tests of these rooms and files start real processes or many servers, so all of them are left out
of the inner loop (`make test FAST=1`), except those marked `quick`.
"""

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
SLOW_ROOMS = {"agent", "checkpoint", "cli", "interop", "launch", "sdk", "storage", "torch", "web"}
SLOW_FILES = {
    f"coordinator/test_{name}.py"
    for name in (
        "agent_sessions",
        "flood",
        "fuzz",
        "hostile",
        "keeping",
        "liveness",
        "metrics",
        "proof",
        "restart",
    )
} | {
    "data/test_remote.py",
    "timeline/test_exports.py",
    "timeline/test_terminal.py",
    "timeline/test_why.py",
}


@pytest.fixture
def anyio_backend():
    return "asyncio"


def pytest_collection_modifyitems(items):
    # A browser's driver leaves an event loop running, beside which no other test can have its own.
    items.sort(key=lambda item: item.path.relative_to(TESTS).parts[0] == "web")
    for item in items:
        file = item.path.relative_to(TESTS)
        slow = file.parts[0] in SLOW_ROOMS or file.as_posix() in SLOW_FILES
        if slow and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)
