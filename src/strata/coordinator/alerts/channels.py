"""Channels for messages about alerts: a webhook, e-mail.

`send` blocks, and raises `ChannelError` with a reason that holds no secret: the URL of a webhook is
one.
"""

import http.client
import smtplib
import ssl
from email.errors import MessageError
from typing import Protocol
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from strata.config import Settings
from strata.coordinator.alerts.messages import Message, email_of, form_of, webhook_body
from strata.errors import SettingError

SEND_TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 1_024
MAX_WAIT_S = 300.0


class ChannelError(Exception):
    """A message was not taken; `retry_after_s` is what the server asks for."""

    def __init__(self, reason: str, retry_after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Channel(Protocol):
    """Where messages are sent. `target` names it without secrets."""

    name: str
    target: str

    def send(self, message: Message) -> None:
        """Send a message; raises `ChannelError` if it was not taken."""


class _NoRedirects(HTTPRedirectHandler):
    """A redirected POST becomes a GET without the message, so a redirect is an error."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


class Webhook:
    """Posts JSON to a URL."""

    name = "webhook"

    def __init__(self, settings: Settings) -> None:
        url = settings.alert_webhook
        self.target = _host_of(url)
        self._url = url
        self._form = form_of(url, settings.alert_webhook_format)
        self._opener = _opener(self.target, settings.alert_ca)

    def send(self, message: Message) -> None:
        """Post a message."""
        request = Request(
            self._url,
            data=webhook_body(message, self._form),
            headers={"Content-Type": "application/json", "User-Agent": "strata-alerts"},
            method="POST",
        )
        try:
            with self._opener.open(request, timeout=SEND_TIMEOUT_S) as answer:
                answer.read(MAX_ANSWER_BYTES)
        except HTTPError as error:
            with error:
                wait_s = _seconds(error.headers.get("Retry-After", ""))
                reason = http.client.responses.get(error.code, "")
                raise ChannelError(f"HTTP {error.code} {reason}".strip(), wait_s) from None
        except URLError as error:
            raise ChannelError(f"{self.target}: {_plain(error.reason)}") from None
        except OSError as error:
            raise ChannelError(f"{self.target}: {_plain(error)}") from None
        except (http.client.HTTPException, ValueError) as error:
            # Their text may contain the URL.
            raise ChannelError(f"{self.target}: {type(error).__name__}") from None


class Email:
    """Sends e-mail by SMTP."""

    name = "email"

    def __init__(self, settings: Settings) -> None:
        self._recipients = [each.strip() for each in settings.alert_email_to.split(",")]
        if not settings.alert_smtp_host or not settings.alert_email_from:
            raise SettingError(
                "alert_email_to needs a mail server and a sender",
                hint="set alert_smtp_host and alert_email_from",
            )
        if not all(self._recipients):
            raise SettingError(
                f"alert_email_to {settings.alert_email_to!r} has an empty address",
                hint="separate addresses by single commas",
            )
        self.target = ", ".join(self._recipients)
        self._settings = settings
        self._tls = _tls(settings.alert_ca)

    def send(self, message: Message) -> None:
        """Send a message; a recipient that the server refuses is an error."""
        settings = self._settings
        where = f"{settings.alert_smtp_host}:{settings.alert_smtp_port}"
        try:
            mail = email_of(message, settings.alert_email_from, self._recipients)
            with self._connected() as server:
                if settings.alert_smtp_user:
                    server.login(settings.alert_smtp_user, settings.alert_smtp_password)
                refused = server.send_message(mail, to_addrs=self._recipients)
        except smtplib.SMTPResponseException as error:
            said = _plain(error.smtp_error)
            raise ChannelError(f"{where}: SMTP {error.smtp_code} {said}") from None
        except (OSError, smtplib.SMTPException, MessageError, ValueError) as error:
            raise ChannelError(f"{where}: {_plain(error)}") from None
        if refused:
            raise ChannelError(f"{where} refused {', '.join(sorted(refused))}")

    def _connected(self) -> smtplib.SMTP:
        settings = self._settings
        host, port = settings.alert_smtp_host, settings.alert_smtp_port
        if settings.alert_smtp_security == "tls":
            return smtplib.SMTP_SSL(host, port, timeout=SEND_TIMEOUT_S, context=self._tls)
        server = smtplib.SMTP(host, port, timeout=SEND_TIMEOUT_S)
        if settings.alert_smtp_security == "starttls":
            try:
                server.starttls(context=self._tls)
            except BaseException:
                server.close()
                raise
        return server


def channels_of(settings: Settings) -> list[Channel]:
    """The channels that are set; raises `SettingError` for one that cannot work."""
    found: list[Channel] = []
    if settings.alert_webhook:
        found.append(Webhook(settings))
    if settings.alert_email_to:
        found.append(Email(settings))
    return found


def _host_of(url: str) -> str:
    """The host of a webhook's URL; raises `SettingError`, without the URL, if it is not valid."""
    hint = "set it to the URL that the receiving service shows"
    invalid = SettingError("alert_webhook is not a valid URL", hint=hint)
    if not all("!" <= character <= "~" for character in url):
        raise invalid
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is no port
    except ValueError:
        raise invalid from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingError("alert_webhook is not an http or https URL", hint=hint)
    return parts.hostname


def _opener(host: str, ca: str) -> OpenerDirector:
    handlers = [_NoRedirects(), HTTPSHandler(context=_tls(ca))]
    if host == "localhost" or host.startswith("127.") or host == "::1":
        handlers.append(ProxyHandler({}))
    return build_opener(*handlers)


def _tls(ca: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca or None)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"alert_ca {ca} cannot be used: {error}", hint="it must be a PEM file of a CA"
        ) from error


def _seconds(text: str) -> float:
    try:
        return min(max(float(text), 0.0), MAX_WAIT_S)
    except ValueError:
        return 0.0


def _plain(error: object) -> str:
    """What an error says, in one line."""
    if isinstance(error, bytes):
        error = error.decode(errors="replace")
    if isinstance(error, TimeoutError):
        return f"no answer within {SEND_TIMEOUT_S:g} s"
    text = " ".join(str(error).split())
    return text or type(error).__name__
