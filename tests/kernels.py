"""A real Jupyter kernel, cell by cell."""

from contextlib import contextmanager

import pytest

WAIT_S = 60


class Kernel:
    """A kernel and its client."""

    def __init__(self, manager, client):
        self._manager, self._client = manager, client

    def run(self, source, during=lambda: None):
        """Run a cell; returns what it printed, and the name of its error, if any."""
        printed, asked = [], self._client.execute(source)
        during()
        while True:
            message = self._client.get_iopub_msg(timeout=WAIT_S)
            if message["parent_header"].get("msg_id") != asked:
                continue
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
            if message["msg_type"] == "error":
                printed.append(message["content"]["ename"])
            if message["content"].get("execution_state") == "idle":
                return "".join(printed)

    def interrupt(self):
        """Press the button that interrupts the running cell."""
        self._manager.interrupt_kernel()


@contextmanager
def kernel(environment, **options):
    """A kernel with this environment; it is killed at the end."""
    manager = pytest.importorskip("jupyter_client.manager")
    pytest.importorskip("ipykernel")
    started, client = manager.start_new_kernel(env=environment, **options)
    try:
        yield Kernel(started, client)
    finally:
        client.stop_channels()
        started.shutdown_kernel(now=True)
