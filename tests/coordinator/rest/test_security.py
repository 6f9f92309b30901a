"""Access control: loopback by default, otherwise a token; no foreign pages; a rate limit."""

import time

import pytest

from strata.config import Settings
from strata.coordinator.rest import page_files
from strata.coordinator.rest.app import create_app
from strata.coordinator.rest.request_checks import HttpLimits, RateLimit
from strata.coordinator.rest.security import Access, Head, is_loopback
from strata.errors import Overloaded, SettingError
from tests.coordinator.rest.served import Coordinator

TOKEN = "correct-horse-battery"
TASK = {"name": "n"}
PAGE = "http://page.example:8080"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("open")) as running:
        yield running


@pytest.fixture
def open_client(shared):
    with shared.client() as client:
        yield client


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    with Coordinator(tmp_path_factory.mktemp("guarded"), token=TOKEN) as running:
        yield running


@pytest.fixture
def locked_client(guarded):
    with guarded.client() as client:
        yield client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "node.example"])
def test_token_is_required_unless_loopback(shared, host):
    with pytest.raises(SettingError, match="token"):
        create_app(shared.api, Settings(http_host=host))
    assert Access(host=host, token=TOKEN)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("x", False)],
)
def test_loopback_addresses(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:9999", "127.0.0.1:3000", "[::1]:3000", "LOCALHOST"]
)
def test_loopback_host_names_are_accepted(open_client, host):
    assert open_client.get("/api/status", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:3000", "localhost.evil.example", "127.0.0.1.evil.example"],
)
def test_foreign_host_name_is_refused(open_client, host):
    answer = open_client.get("/api/status", headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "permission_denied"


@pytest.mark.parametrize("host", ["", "[", "a b", "@"])
def test_invalid_host_header_is_refused(open_client, host):
    assert open_client.get("/api/status", headers={"Host": host}).status_code in (400, 403)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost:1", "http://[", ""]
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/tasks"),
        ("POST", "/api/tasks/x/stop"),
        ("GET", "/api/stream"),
        ("GET", "/api//stream/"),
        ("GET", "/api/logs/stream"),
    ],
)
def test_pages_of_other_sites_may_not_write_or_stream(open_client, method, path, origin):
    answer = open_client.request(method, path, headers={"Origin": origin})
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_sec_fetch_site_identifies_pages_of_other_sites(open_client, site):
    answer = open_client.post("/api/tasks", json=TASK, headers={"Sec-Fetch-Site": site})
    assert answer.status_code == 403


def test_own_page_and_programs_may_write(shared, open_client):
    own = {"Origin": shared.url, "Sec-Fetch-Site": "same-origin"}
    assert open_client.post("/api/tasks", json=TASK, headers=own).status_code == 201
    assert open_client.post("/api/tasks", json=TASK).status_code == 201


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """A coordinator whose dashboard has another origin."""
    folder = tmp_path_factory.mktemp("elsewhere")
    with Coordinator(folder, token=TOKEN, page_origin=PAGE) as running, running.client() as client:
        yield client


def test_configured_page_origin_may_read_and_write(elsewhere):
    asked = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Sec-Fetch-Site": "cross-site",
    }
    before = elsewhere.options("/api/tasks", headers=asked)
    assert before.status_code == 200
    own = {"Origin": PAGE, "Sec-Fetch-Site": "same-site", "Authorization": f"Bearer {TOKEN}"}
    for answer in (before, elsewhere.post("/api/tasks", json=TASK, headers=own)):
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert answer.headers["access-control-allow-credentials"] == "true"
    assert answer.status_code == 201
    assert elsewhere.get("/api/tasks", headers={"Origin": PAGE}).status_code == 401


@pytest.mark.parametrize("origin", ["http://page.example:81", "http://page.example", "null", ""])
def test_other_origins_than_the_configured_one_may_not_write(elsewhere, origin):
    known = {"Origin": origin, "Authorization": f"Bearer {TOKEN}"}
    answer = elsewhere.post("/api/tasks", json=TASK, headers=known)
    assert answer.status_code == 403
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("origin", ["page.example", "http://page.example/", "*", "http://"])
def test_invalid_page_origin_is_refused(origin):
    with pytest.raises(SettingError, match="page_origin"):
        Access(host="127.0.0.1", page_origin=origin)


@pytest.mark.parametrize(
    "url",
    [
        "api",
        "//host/api",
        "ftp://host/api",
        "http://",
        "/api?x",
        "/a b",
        "/api; script-src *",
        "/é",
    ],
)
def test_invalid_page_api_url_is_refused(url):
    with pytest.raises(SettingError, match="page_api_url"):
        Access(host="127.0.0.1", page_api_url=url)


@pytest.mark.parametrize(
    "url", ["/api", "/strata/api", "http://[::1]:3000/api", "https://host/api"]
)
def test_path_or_url_is_a_valid_page_api_url(url):
    assert Access(host="127.0.0.1", page_api_url=url).page_api_url == url


@pytest.mark.parametrize(
    ("path", "headers", "allowed"),
    [
        ("/api/health", {"origin": "http://head2:3000"}, True),
        ("/api/tasks", {"origin": "http://head2:3000"}, False),
        ("/api/health", {"origin": "http://evil.example"}, False),
        ("/api/health", {}, False),
    ],
)
def test_only_a_standby_page_may_ask_whether_the_coordinator_answers(path, headers, allowed):
    pages = page_files.page_urls("http://head1:3000, http://head2:3000/")
    access = Access(host="127.0.0.1", standby_pages=pages)
    head = Head(method="GET", path=path, query="", client="127.0.0.1", headers=headers)
    assert access.is_probe(head) == allowed


@pytest.mark.parametrize(
    "urls", ["head1:3000", "http://head1:3000/api", "http://a;b", "ftp://head1"]
)
def test_standby_pages_are_addresses(urls):
    with pytest.raises(SettingError, match="standby_pages has"):
        page_files.page_urls(urls)


def test_other_origins_get_no_cors_headers(open_client):
    asked = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for method in ("OPTIONS", "GET"):
        answer = open_client.request(method, "/api/tasks", headers=asked)
        assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "path",
    [
        "/api/status",
        "/api/dashboard",
        "/metrics",
        "/api/openapi.json",
        "/api/stream",
        "/api/nothing",
        "/nothing",
        "/api/health/../status",
        "//api//status",
    ],
)
def test_all_endpoints_need_the_token(locked_client, path):
    answer = locked_client.get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "unauthenticated"
    assert answer.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/api/health", "/", *page_files.load()])
def test_health_and_page_files_need_no_token(locked_client, path):
    assert locked_client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        ("Bearer", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer \xff", 401),
    ],
)
def test_bearer_token_is_accepted(locked_client, given, status):
    headers = {"Authorization": given.encode("latin-1")}
    assert locked_client.get("/api/status", headers=headers).status_code == status


def test_token_in_the_page_url_becomes_a_cookie(locked_client):
    answer = locked_client.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite" in cookie
    assert TOKEN not in cookie
    assert locked_client.get("/api/status").status_code == 200
    assert locked_client.post("/api/tasks", json=TASK).status_code == 201


def test_wrong_token_in_the_page_url_is_refused(locked_client):
    answer = locked_client.get("/", params={"token": "wrong"})
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("cookie", ["", TOKEN, "x" * 64, 'a"b'])
def test_wrong_cookie_is_refused(guarded, locked_client, cookie):
    headers = {"Cookie": f"{guarded.guard.access.keyring.cookie_name()}={cookie}"}
    assert locked_client.get("/api/status", headers=headers).status_code == 401


def test_token_in_the_query_is_accepted_for_the_page_only(locked_client):
    assert locked_client.get("/api/status", params={"token": TOKEN}).status_code == 401


def test_token_is_not_in_any_answer(guarded):
    with guarded.client(headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        for path in ("/api/status", "/api/dashboard", "/api/events", "/api/openapi.json"):
            assert TOKEN not in client.get(path).text


@pytest.mark.parametrize("path", ["/", "/api/status", "/api/nothing", "/app.js"])
def test_every_response_has_security_headers(open_client, path):
    headers = open_client.get(path).headers
    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert "server" not in headers


def test_rate_of_changes_is_limited(tmp_path):
    limits = HttpLimits(writes_per_s=0.5, writes_burst=3)
    with Coordinator(tmp_path, limits=limits) as coordinator, coordinator.client() as client:
        statuses = [client.post("/api/tasks", json=TASK).status_code for _ in range(5)]
        assert statuses == [201, 201, 201, 429, 429]
        answer = client.post("/api/tasks", json=TASK)
        assert 1 <= int(answer.headers["Retry-After"]) <= 2
        assert client.get("/api/tasks").status_code == 200


def test_rate_limit_recovers_and_is_per_client():
    now = [0.0]
    pace = RateLimit(HttpLimits(writes_per_s=2.0, writes_burst=2, clients=3), lambda: now[0])
    pace.take("a")
    pace.take("a")
    with pytest.raises(Overloaded) as refused:
        pace.take("a")
    assert refused.value.retry_after_s == pytest.approx(0.5)
    pace.take("b")
    now[0] = 0.5
    pace.take("a")
    with pytest.raises(Overloaded):
        pace.take("a")


def test_number_of_rate_limited_clients_is_bounded():
    pace = RateLimit(HttpLimits(clients=10), time.monotonic)
    for number in range(1000):
        pace.take(f"10.0.0.{number}")
    assert len(pace._buckets) == 10
