"""A real browser before a real coordinator with real workers, and a page that must not complain."""

import os
import signal
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.agent.harness import worker_pids
from tests.cli.conftest import Started, Up, until
from tests.programs import program

TRAINEE = Path(__file__).parent / "trainee.py"
WORKERS = 3
START_S = 120.0
TEST_S = 300.0
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 20_000


def pytest_collection_modifyitems(items):
    """A browser and a cluster are slow to start on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="session")
def browser_type_launch_args():
    return {"executable_path": program("chromium"), "args": [*FLAGS]}


@pytest.fixture(scope="session")
def browser_context_args():
    return {"locale": "en-GB", "viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"}


class Training:
    """A coordinator and an agent in processes of their own, and the task that they train."""

    def __init__(self, folder: Path):
        self.folder = folder
        (folder / "strata.toml").write_text("archive_after_s = 1.0\n", "utf-8")
        self.up = Up(folder)
        self.url = self.up.url
        self.http = httpx.Client(base_url=self.url, trust_env=False, timeout=20)
        self.agent: Started | None = None
        self.task = ""

    def start(self):
        self.up.start()
        address = f"127.0.0.1:{self.up.grpc_port}"
        arguments = ("--coordinator", address, "--slots", "8", "--name", "host-a")
        self.agent = Started("agent", *arguments, "--data-dir", "agent", cwd=self.folder)
        until(lambda: self.get("agents"), START_S)
        self.task = self.submit("noise")
        until(lambda: self.steps() > 25, START_S)

    def submit(self, name, workers=WORKERS, **config):
        body = {
            "name": name,
            "entry": str(TRAINEE),
            "worker_count": workers,
            "config": config,
            "env": {"PWD": str(self.folder), "PYTHONPATH": os.pathsep.join(sys.path)},
        }
        return self.http.post("/api/tasks", json=body).raise_for_status().json()["task_id"]

    def get(self, path, **params):
        return self.http.get(f"/api/{path}", params=params).raise_for_status().json()

    def steps(self):
        return self.get(f"tasks/{self.task}")["committed_steps"]

    def kill(self, worker):
        """As the kernel would, when memory is short."""
        os.kill(worker_pids(self.folder)[worker], signal.SIGKILL)

    def close(self):
        self.http.close()
        if self.agent is not None:
            self.agent.end(signal.SIGTERM)
        self.up.close()
        for pid in worker_pids(self.folder).values():
            os.kill(pid, signal.SIGKILL)


@contextmanager
def training(folder: Path):
    started = Training(folder)
    try:
        started.start()
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    """Shared by the tests of one process: they look, and what they change they undo."""
    with training(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def complaints(page):
    """What the page complained about; a test that expects some clears it."""
    found = []
    page.on("console", lambda said: found.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.set_default_timeout(PATIENCE_MS)
    yield found
    assert found == []


@pytest.fixture
def visit(page, complaints, cluster):
    """Opens a view of the cluster."""

    def open_view(view, url=cluster.url):
        page.goto(f"{url}/#/{view}")
        page.get_by_role("navigation", name="Views").wait_for()
        return page

    return open_view
