"""Fixtures: Chromium, a coordinator with real workers, and a check of the console for errors."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import sync_playwright

from strata import __version__
from strata.coordinator.rest.app import document
from tests.agent.harness import worker_pids
from tests.cli.conftest import Started, Up, until
from tests.programs import program

WEB = Path(__file__).parents[2] / "web"
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
TIMEOUT_MS = 20_000


def pytest_collection_modifyitems(items):
    """Raise the time limit: a browser and a cluster start slowly on a busy machine."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(TEST_S))


@pytest.fixture(scope="module")
def playwright():
    """Playwright. Its event loop runs in this thread until it stops, and no other test could start
    one: it stops with the file, since any test may follow in the same process.
    """
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="module")
def browser(playwright):
    with playwright.chromium.launch(executable_path=program("chromium"), args=FLAGS) as started:
        yield started


@pytest.fixture(scope="session")
def browser_context_args():
    return {"locale": "en-GB", "viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"}


class Training:
    """A coordinator and an agent as separate processes, and the task that they train."""

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

    def submit(self, name, workers=WORKERS, script=TRAINEE, **config):
        body = {
            "name": name,
            "entry": str(script),
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
        """Kill a worker with SIGKILL, as the kernel does when memory runs out."""
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
    """A cluster that the tests of one process share; a test undoes its changes."""
    with training(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def console_errors(page):
    """Errors in the browser's console; a test that expects some clears the list."""
    found = []
    page.on("console", lambda line: found.append(line.text) if line.type == "error" else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.set_default_timeout(TIMEOUT_MS)
    yield found
    assert found == []


@pytest.fixture
def visit(page, console_errors, cluster):
    """A function that opens a view of the cluster."""

    def open_view(view, url=cluster.url):
        page.goto(f"{url}/#/{view}")
        page.get_by_role("navigation", name="Views").wait_for()
        return page

    return open_view


def npm(*arguments, **variables):
    """Run a script of web/package.json; its output is the message when it fails."""
    assert (WEB / "node_modules").is_dir(), "install the packages: make test, or npm ci in web"
    command = [program("npm"), "run", "--silent", *arguments]
    how = {"capture_output": True, "text": True, "timeout": 110, "env": os.environ | variables}
    done = subprocess.run(command, cwd=WEB, **how)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="session")
def api_types():
    """The TypeScript types of the REST API; only building the page needs them, so git ignores them.

    Test processes may do this at the same time: the file is written whole or not at all.
    """
    described = json.dumps(json.loads(document(__version__)), indent=1) + "\n"
    source, target = WEB / "openapi.json", WEB / "src/api/schema.ts"
    if target.exists() and source.exists() and source.read_text("utf-8") == described:
        return
    source.write_text(described, "utf-8")
    draft = WEB / f"schema-{os.getpid()}.ts"
    tool = WEB / "node_modules/.bin/openapi-typescript"
    command = [str(tool), str(source), "--output", str(draft), "--alphabetize"]
    subprocess.run(command, check=True, capture_output=True, timeout=100, cwd=WEB)
    draft.replace(target)
