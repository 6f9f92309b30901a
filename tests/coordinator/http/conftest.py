"""Coordinators for the tests of the API: one shared by those that only look, fresh ones else."""

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
