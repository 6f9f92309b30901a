"""Real servers that take messages about alerts: HTTP (one may fail or never answer) and SMTP."""

import json
import ssl
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import trustme
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from tests.coordinator.process import free_port


class Hook:
    """A webhook. It answers with these status codes, then with 200; 0 never answers."""

    def __init__(self, *codes: int, headers: dict[str, str] | None = None) -> None:
        self.codes = list(codes)
        self.headers = headers or {}
        self.requests = 0
        self.taken: list[dict] = []
        self.ended = threading.Event()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                hook.answer(self)

            def do_GET(self):
                self.send_error(418, "the message was not posted")

            def log_message(self, *arguments):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/services/s3cret"

    def answer(self, handler) -> None:
        self.requests += 1
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        code = self.codes.pop(0) if self.codes else 200
        if not code:
            self.ended.wait(60)
            return
        if code == 200:
            assert handler.headers["Content-Type"] == "application/json"
            self.taken.append(json.loads(body))
        handler.send_response(code)
        for name, value in self.headers.items():
            handler.send_header(name, value)
        handler.end_headers()


@contextmanager
def webhook(*codes: int, **given):
    """A webhook that serves while the context is open."""
    hook = Hook(*codes, **given)
    thread = threading.Thread(target=hook.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hook
    finally:
        hook.ended.set()
        hook.server.shutdown()
        hook.server.server_close()
        thread.join()


class Mailbox:
    """The handler of an SMTP server: keeps the mails, refuses an address that begins with `no`."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], str]] = []
        self.logins: list[tuple[bytes, bytes]] = []

    async def handle_RCPT(self, server, session, envelope, address, options):
        if address.startswith("no"):
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):
        self.mails.append((envelope.rcpt_tos, envelope.content.decode()))
        return "250 OK"

    def login(self, server, session, envelope, mechanism, data):
        self.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"s3cret", handled=False)


@contextmanager
def mail_server(folder, *, security: str):
    """An SMTP server with login; yields its mailbox and the settings of the channel."""
    authority = trustme.CA()
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    mailbox = Mailbox()
    port = free_port()
    controller = Controller(
        mailbox,
        hostname="127.0.0.1",
        port=port,
        ssl_context=context if security == "tls" else None,
        tls_context=context if security == "starttls" else None,
        require_starttls=security == "starttls",
        authenticator=mailbox.login,
        auth_required=security == "starttls",
        auth_require_tls=security == "starttls",
    )
    controller.start()
    try:
        yield (
            mailbox,
            {
                "alert_email_to": "ops@example.org, oncall@example.org",
                "alert_email_from": "strata@example.org",
                "alert_smtp_host": "127.0.0.1",
                "alert_smtp_port": port,
                "alert_smtp_security": security,
                "alert_smtp_user": "strata",
                "alert_smtp_password": "s3cret",
                "alert_ca": str(ca),
            },
        )
    finally:
        controller.stop(no_assert=True)
