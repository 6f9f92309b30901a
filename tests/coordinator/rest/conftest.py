"""A new coordinator for a test of the API, and a client."""

import pytest

from tests.coordinator.rest.served import Coordinator


@pytest.fixture
def coordinator(tmp_path):
    with Coordinator(tmp_path) as running:
        yield running


@pytest.fixture
def client(coordinator):
    with coordinator.client() as client:
        yield client
