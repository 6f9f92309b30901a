"""Guards how verbs find the coordinator, and that every failure is one sentence with a hint."""

import io
import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer

import httpx
import pytest
import trustme
from rich.console import Console

from strata.cli.support import rest_client
from strata.cli.support.exit_codes import DENIED, NOT_FOUND, UNREACHABLE, USAGE
from strata.cli.support.task_watch import Started, Watcher
from strata.config import Settings
from strata.errors import InvalidArgument
from tests.cli.conftest import free_port, strata
from tests.coordinator.conftest import coordinator

VERBS = [
    ["status"],
    ["workers"],
    ["tasks"],
    ["barriers"],
    ["datasets"],
    ["checkpoints"],
    ["logs"],
    ["logs", "-f"],
    ["events"],
    ["events", "-f"],
]


def refused(ended, sentence, hint, code=UNREACHABLE):
    assert ended.returncode == code
    assert ended.stdout == ""
    first, second = ended.stderr.splitlines()
    assert sentence in first
    assert hint in second


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_missing_coordinator_is_an_error(verb, tmp_path):
    url = f"http://127.0.0.1:{free_port()}"
    ended = strata(*verb, "--url", url, cwd=tmp_path)
    refused(ended, f"strata: no coordinator answers at {url}", "`strata up`")


def test_address_comes_from_the_settings(cluster):
    port = httpx.URL(cluster.url).port
    assert strata("status", cwd=cluster.folder, STRATA_HTTP_PORT=str(port)).returncode == 0
    (cluster.folder / "strata.toml").write_text(f"http_port = {port}\n")
    assert strata("status", cwd=cluster.folder).returncode == 0


def test_bad_setting_is_named(tmp_path):
    ended = strata("status", cwd=tmp_path, STRATA_HTP_PORT="3000")
    refused(ended, "unknown setting 'STRATA_HTP_PORT'", "STRATA_HTTP_PORT", USAGE)


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "http://127.0.0.1:3000"),
        ({"http_host": "0.0.0.0", "http_port": 1}, "http://127.0.0.1:1"),
        ({"http_host": "::"}, "http://[::1]:3000"),
        ({"http_host": "node", "tls_cert": "c.pem"}, "https://node:3000"),
    ],
)
def test_url_follows_from_the_settings(settings, url):
    assert rest_client.url_of(Settings(**settings)) == url


@pytest.mark.parametrize("url", ["", "http://", "ftp://a:1", "http://a:port", "grpc://a"])
def test_invalid_url_is_an_error(url):
    with pytest.raises(InvalidArgument, match="not the address"):
        rest_client.Api(url)


def test_missing_and_wrong_tokens_are_errors(tmp_path):
    with coordinator(tmp_path / "data", token="secret") as running:
        url = running.http_url
        asked = strata("status", "--url", url, cwd=tmp_path)
        refused(asked, "requires a token", "STRATA_TOKEN", DENIED)
        wrong = strata("logs", "-f", "--url", url, cwd=tmp_path, STRATA_TOKEN="guess")
        refused(wrong, "rejected the token", "STRATA_TOKEN", DENIED)
        assert strata("status", "--url", url, cwd=tmp_path, STRATA_TOKEN="secret").returncode == 0
        shown = strata("status", "--url", f"{url}/?token=secret", cwd=tmp_path)
        assert shown.returncode == 0
        assert "secret" not in shown.stdout


def test_tls_with_the_coordinators_own_certificate(tmp_path):
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    files = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    with coordinator(tmp_path / "data", **files) as running:
        url = running.http_url
        trusted = strata("status", "--url", url, cwd=tmp_path, STRATA_TLS_CERT="cert.pem")
        assert trusted.returncode == 0, trusted.stderr
        strange = strata("status", "--url", url, cwd=tmp_path)
        refused(strange, "cannot be trusted", "STRATA_TLS_CERT")
        plain = strata("status", "--url", url.replace("https", "http"), cwd=tmp_path)
        refused(plain, "is not a coordinator's REST API", "https")


def test_certificate_that_cannot_be_read(tmp_path):
    ended = strata("status", cwd=tmp_path, STRATA_TLS_CERT="nowhere.pem")
    refused(ended, "cannot read the certificate nowhere.pem", "PEM", USAGE)


def test_grpc_port_is_not_the_rest_api(cluster):
    url = f"http://127.0.0.1:{cluster.running.grpc_port}"
    ended = strata("status", "--url", url, cwd=cluster.folder)
    refused(ended, "is not a coordinator's REST API", "the gRPC port is a different one")


class OtherServer(BaseHTTPRequestHandler):
    """A web server that is not a coordinator: it has a page and no API."""

    def do_GET(self):
        self.send_response(200 if self.path == "/api/dashboard" else 404)
        self.end_headers()
        self.wfile.write(b"<html>")

    def log_message(self, *_):
        """Log nothing."""


@pytest.mark.parametrize(
    ("verb", "said"), [("status", "invalid response"), ("workers", "status 404")]
)
def test_other_http_server_is_an_error(verb, said, tmp_path):
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        ended = strata(verb, "--url", f"http://127.0.0.1:{server.server_port}", cwd=tmp_path)
        server.shutdown()
    assert ended.returncode == 5
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_server_that_never_answers_times_out(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        api = rest_client.Api(f"http://127.0.0.1:{silent.getsockname()[1]}")
        with pytest.raises(rest_client.DeadlineExceeded, match="does not answer"):
            api.open("/api/status", {}, timeout_s=0.1)


class SlowReader(BaseHTTPRequestHandler):
    """A coordinator that reads a long log: it answers status at once, the rest when allowed."""

    allowed = threading.Event()

    def do_GET(self):
        if self.path != "/api/status":
            self.allowed.wait(60)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        """Log nothing."""


def test_question_that_reads_the_log_is_waited_for_longer(monkeypatch):
    monkeypatch.setattr(rest_client, "TIMEOUT_S", 0.1)
    with ThreadingHTTPServer(("127.0.0.1", 0), SlowReader) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        api = rest_client.Api(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(rest_client.DeadlineExceeded, match="does not answer"):
            api.get("/api/tasks")
        threading.Timer(0.5, SlowReader.allowed.set).start()
        assert api.get("/api/tasks/t/audit").body == b"{}"
        server.shutdown()


def test_failed_audit_does_not_end_the_run_with_an_error(tmp_path):
    with HTTPServer(("127.0.0.1", 0), OtherServer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        out = Console(file=io.StringIO(), width=200)
        api = rest_client.Api(f"http://127.0.0.1:{server.server_port}")
        Watcher(api, Started("t"), out, False).audit()
        server.shutdown()
    assert "? the audit could not be made: http" in out.file.getvalue()


@pytest.mark.parametrize(
    ("arguments", "sentence", "hint"),
    [
        (["barriers", "--task", "nope"], "there is no task 'nope'", "strata tasks"),
        (["events", "--kind", "Nope"], "unknown kind of fact 'Nope'", "WorkerLost"),
        (["events", "-f", "--from", "999"], "position 999 is beyond", "omit position"),
        (["logs", "--search", "("], "not a valid regular expression", "RE2"),
    ],
)
def test_coordinators_error_is_printed(cluster, arguments, sentence, hint):
    code = NOT_FOUND if arguments[0] == "barriers" else USAGE
    refused(cluster.run(*arguments), sentence, hint, code)


def test_invalid_choice_lists_the_valid_ones(cluster):
    ended = cluster.run("workers", "--status", "nonsense")
    assert ended.returncode == 2
    assert "'checkpointing'" in ended.stderr


def test_relative_times_follow_the_coordinators_clock(monkeypatch):
    monkeypatch.setattr(rest_client.time, "time_ns", lambda: 1_700_000_000_123_000_000)
    assert rest_client.now_ms("Tue, 14 Nov 2023 22:13:19 GMT") == 1_700_000_000_123
    assert rest_client.now_ms("Tue, 14 Nov 2023 22:03:20 GMT") == 1_699_999_400_000
    assert rest_client.now_ms(None) == 1_700_000_000_123
