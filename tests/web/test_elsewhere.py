"""Guards a page that was built for another address: it speaks to the coordinator that it was told
of, where that one was told of the page."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.cli.conftest import Up
from tests.web.test_build import npm
from tests.web.test_views import expect

TOKEN = "open-sesame"


class Quiet(SimpleHTTPRequestHandler):
    """Serves files and says nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture
def up(tmp_path):
    started = Up(tmp_path)
    yield started
    started.close()


@pytest.fixture
def elsewhere(up, tmp_path):
    """The address of a page that was built for this coordinator and is served by somebody else."""
    npm("build", "--", "--outDir", str(tmp_path / "page"), VITE_API_URL=f"{up.url}/api")
    serving = partial(Quiet, directory=str(tmp_path / "page"))
    with ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_page_that_is_served_elsewhere_logs_in_lives_and_acts(page, complaints, up, elsewhere):
    (up.folder / "strata.toml").write_text(f'page_origin = "{elsewhere}"\n')
    up.start("--token", TOKEN)
    page.goto(elsewhere)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    page.goto(f"{elsewhere}/#/tasks/new")
    page.get_by_label("Name").fill("from elsewhere")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from-elsewhere-1")).to_be_visible()
    complaints.clear()  # the browser says that requests before the token were refused


def test_a_page_that_the_coordinator_was_not_told_of_stays_outside(page, complaints, up, elsewhere):
    up.start()
    page.goto(elsewhere)
    expect(page.get_by_text("Disconnected: the coordinator cannot be reached")).to_be_visible()
    complaints.clear()  # the browser says that it may not read the answers
