"""Shared by all tests: which event loop coroutine tests (marked `anyio`) run on."""

import pytest


@pytest.fixture
def anyio_backend():
    return "asyncio"
