"""Guards a page whose API is at another address: built for it, or served by a coordinator that was
started with `VITE_API_URL`. The other coordinator must allow the page's origin."""

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from tests.cli.conftest import Started, Up, free_port, until
from tests.web.conftest import START_S, npm
from tests.web.test_views import expect

TOKEN = "open-sesame"


class SilentFileServer(SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, *_):
        pass


@pytest.fixture
def up(tmp_path):
    started = Up(tmp_path)
    yield started
    started.close()


@pytest.fixture
def elsewhere(up, tmp_path, api_types):
    """The address of a page that was built for this coordinator and is served by another server."""
    npm("build", "--", "--outDir", str(tmp_path / "page"), VITE_API_URL=f"{up.url}/api")
    serving = partial(SilentFileServer, directory=str(tmp_path / "page"))
    with ThreadingHTTPServer(("127.0.0.1", 0), serving) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,)).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_page_of_another_server_logs_in_and_submits_a_task(page, console_errors, up, elsewhere):
    (up.folder / "strata.toml").write_text(f'page_origin = "{elsewhere}"\n')
    up.start("--token", TOKEN)
    page.goto(elsewhere)
    page.get_by_label("Token").fill(TOKEN)
    page.get_by_role("button", name="Open", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    page.goto(f"{elsewhere}/#/tasks/new")
    page.get_by_label("Name").fill("from elsewhere")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from-elsewhere-1")).to_be_visible()
    console_errors.clear()  # the browser logs refused requests as errors


def test_page_of_an_origin_that_is_not_allowed_stays_disconnected(
    page, console_errors, up, elsewhere
):
    up.start()
    page.goto(elsewhere)
    expect(page.get_by_text("Disconnected: the coordinator cannot be reached")).to_be_visible()
    console_errors.clear()  # the browser logs blocked requests as errors


@pytest.fixture
def front(tmp_path):
    """A coordinator that serves the page for another coordinator's API."""
    folder = tmp_path / "front"
    folder.mkdir()
    port = free_port()
    started = []

    def start(**variables):
        ports = ("--http-port", str(port), "--grpc-port", "0")
        started.append(Started("up", *ports, "--data-dir", "data", cwd=folder, **variables))
        started[0].wait_for(lambda it: any("data " in line for line in it.err), "start")
        return started[0]

    yield f"http://127.0.0.1:{port}", start
    for each in started:
        each.discard()


def test_served_page_calls_the_api_of_vite_api_url(page, console_errors, up, front):
    url, start = front
    (up.folder / "strata.toml").write_text(f'page_origin = "{url}"\n')
    up.start()
    start(VITE_API_URL=f"{up.url}/api")
    requested = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(f"{url}/#/settings")
    expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    expect(page.get_by_text(f"{up.url}/api", exact=True)).to_be_visible()
    calls = [each for each in requested if "/api/" in each]
    assert calls
    assert all(each.startswith(f"{up.url}/api/") for each in calls)


def test_content_security_policy_allows_only_the_given_api(front):
    url, start = front
    start(VITE_API_URL="http://10.0.0.5:3000/api")
    answer = httpx.get(url, trust_env=False)
    assert 'content="http://10.0.0.5:3000/api"' in answer.text
    policy = answer.headers["content-security-policy"].split("; ")
    assert "connect-src 'self' http://10.0.0.5:3000" in policy
    assert "script-src 'self'" in policy


def test_page_changes_to_the_standby_when_its_coordinator_is_killed(page, console_errors, tmp_path):
    ports = [free_port(), free_port()]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    pages = {"STRATA_STANDBY_PAGES": ",".join(urls)}
    started = []
    try:
        for port, url, option in zip(ports, urls, ((), ("--standby",)), strict=True):
            given = ("--http-port", str(port), "--grpc-port", "0", "--data-dir", "data", *option)
            started.append(Started("up", *given, cwd=tmp_path, **pages))
            until(partial(answers, url), START_S)
        page.goto(f"{urls[0]}/#/workers")
        expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
        started[0].process.kill()
        page.wait_for_url(f"{urls[1]}/#/workers")
        expect(page.get_by_role("status").filter(has_text="live")).to_be_visible()
    finally:
        for each in started:
            each.discard()
    console_errors.clear()  # the browser logs the broken connection as an error


def answers(url):
    """Whether a coordinator answers there."""
    try:
        return httpx.get(f"{url}/api/health", trust_env=False).is_success
    except httpx.HTTPError:
        return False
