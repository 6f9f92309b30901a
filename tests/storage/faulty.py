"""A proxy for an S3 server that misbehaves on request: returns errors, cuts, hangs, resets."""

import http.client
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec

from strata.config import Settings

ERROR = "<Error><Code>{code}</Code><Message>injected</Message></Error>"
STATUSES = {
    "internal": (500, "InternalError"),
    "slow_down": (503, "SlowDown"),
    "throttled": (429, "TooManyRequests"),
    "expired": (400, "ExpiredToken"),
    "denied": (403, "AccessDenied"),
    "missing": (404, "NoSuchKey"),
}


class Faults:
    """The faults to inject: `plan(method, path)` names a fault, or returns ""."""

    def __init__(self) -> None:
        self.plan = lambda method, path: None
        self.seen: list[tuple[str, str, str | None]] = []
        self.released = threading.Event()
        self._lock = threading.Lock()

    def first(self, count: int, fault: str, method: str = "") -> None:
        """Make the first `count` requests of that method fail."""
        left = [count]

        def plan(verb: str, path: str) -> str | None:
            if method in ("", verb) and left[0] > 0:
                left[0] -= 1
                return fault
            return None

        self.plan = plan

    def always(self, fault: str, method: str = "", containing: str = "") -> None:
        self.plan = lambda verb, path: (
            fault if method in ("", verb) and containing in path else None
        )

    def decide(self, method: str, path: str) -> str | None:
        with self._lock:
            fault = self.plan(method, path)
            self.seen.append((method, path, fault))
            return fault


def handler(upstream: str, faults: Faults) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def _relay(self):
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault = faults.decide(self.command, self.path)
            if fault in STATUSES:
                status, code = STATUSES[fault]
                return self._answer(status, {}, ERROR.format(code=code).encode())
            if fault == "hang":
                faults.released.wait(30)
            if fault in ("reset", "hang"):
                self.close_connection = True
                return None
            status, headers, answer = self._ask(body)
            return self._answer(status, headers, answer, cut=fault == "truncate")

        def _ask(self, body):
            connection = http.client.HTTPConnection(upstream, timeout=60)
            connection.putrequest(
                self.command, self.path, skip_host=True, skip_accept_encoding=True
            )
            for name, value in self.headers.items():
                connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            return answer.status, dict(answer.headers), content

        def _answer(self, status, headers, content, cut=False):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in {"transfer-encoding", "connection", "server", "date"}:
                    self.send_header(name, value)
            if not any(name.lower() == "content-length" for name in headers):
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2] if cut else content)
            self.close_connection = self.close_connection or cut

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _relay

    return Handler


@contextmanager
def faulty_proxy(settings: Settings):
    """Yields settings that lead through the proxy, and its faults."""
    faults = Faults()
    upstream = settings.aws_endpoint_url.removeprefix("http://")
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(upstream, faults))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield msgspec.structs.replace(settings, aws_endpoint_url=endpoint), faults
    finally:
        faults.released.set()
        server.shutdown()
        server.server_close()
        thread.join()
