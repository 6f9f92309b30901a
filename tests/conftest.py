"""Shared by all tests: Ctrl-C, an S3 server, the event loop of coroutine tests (marked `anyio`),
and which tests are slow.

The folders and files named here start processes, run many servers or simulate for long. Their
tests are left out of `make test FAST=1`, except those marked `quick`.
"""

import signal
from pathlib import Path

import hypothesis
import pytest

# Without a limit of time for each example: it would depend on the speed of the machine.
hypothesis.settings.register_profile("any machine", deadline=None)
hypothesis.settings.load_profile("any machine")

# A shell starts background jobs with SIGINT ignored, and every child inherits that: then tests
# that press Ctrl-C would wait in vain. With a handler in this process, children start with the
# default action.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
SLOW_FOLDERS = {
    "agent",
    "checkpoint",
    "cli",
    "examples",
    "faults",
    "install",
    "interop",
    "launch",
    "sdk",
    "storage",
    "torch",
    "web",
}
SLOW_FILES = {
    f"coordinator/test_{name}.py"
    for name in (
        "agent_sessions",
        "environments",
        "flood",
        "fuzz",
        "hostile",
        "keeping",
        "liveness",
        "metrics",
        "proof",
        "restart",
        "unauthenticated",
    )
} | {
    "data/test_remote.py",
    "seeds/test_events_seen.py",
    "seeds/test_snippets.py",
    "seeds/test_surface.py",
    "sim/test_defects.py",
    "store/test_corruption.py",
    "store/test_crash.py",
    "timeline/test_exports.py",
    "timeline/test_stretches.py",
    "timeline/test_terminal.py",
    "timeline/test_why.py",
}


@pytest.fixture(scope="session")
def s3_settings(tmp_path_factory):
    """The settings that reach a real S3 server, one for each process that runs tests."""
    from tests.storage.server import running

    with running(tmp_path_factory.mktemp("s3")) as settings:
        yield settings


@pytest.fixture
def anyio_backend():
    return "asyncio"


def is_slow(path: Path) -> bool:
    file = path.relative_to(TESTS)
    return file.parts[0] in SLOW_FOLDERS or file.as_posix() in SLOW_FILES


def pytest_ignore_collect(collection_path, config):
    """Do not import files of which `-m "not slow"` would leave out every test."""
    if config.option.markexpr != "not slow" or collection_path.suffix != ".py":
        return None
    slow = is_slow(collection_path) and "mark.quick" not in collection_path.read_text("utf-8")
    return True if slow else None


def pytest_collection_modifyitems(items):
    for item in items:
        if is_slow(item.path) and not item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.slow)
