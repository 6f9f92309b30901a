import pytest

from tests.wire.harness import Running


@pytest.fixture
def start():
    """Start servers that stop with the test."""
    running = []

    def begin(**options) -> Running:
        running.append(Running(**options))
        return running[-1]

    yield begin
    for each in running:
        each.stop()


@pytest.fixture
def server(start) -> Running:
    return start()
