"""A fresh coordinator for a test of the API, and a client that talks to it."""

import pytest

from tests.coordinator.http.served import Coordinator


@pytest.fixture
def coordinator(tmp_path):
    with Coordinator(tmp_path) as running:
        yield running


@pytest.fixture
def client(coordinator):
    with coordinator.client() as client:
        yield client
