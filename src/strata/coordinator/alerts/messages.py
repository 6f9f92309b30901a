"""Messages about alerts: as text, as JSON for Slack, Discord and others, and as e-mail."""

from collections.abc import Sequence
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from strata.core.state import Alert

Form: TypeAlias = Literal["auto", "slack", "discord", "generic"]

SLACK_HOSTS = ("hooks.slack.com", "hooks.slack-gov.com")
DISCORD_HOSTS = ("discord.com", "discordapp.com", "ptb.discord.com", "canary.discord.com")
COLOURS = {"error": 0xD64545, "warning": 0xD9902F, "info": 0x4C7BD9}
RESOLVED_COLOUR = 0x3C9D5B
SIGNS = {
    "error": "\N{CROSS MARK}",
    "warning": "\N{WARNING SIGN}\ufe0f",
    "info": "\N{INFORMATION SOURCE}\ufe0f",
}
RESOLVED_SIGN = "\N{WHITE HEAVY CHECK MARK}"
STATES = {"alert.resolved": "resolved", "alert.closed": "closed"}
MAX_TEXT = 1_500
"""Discord allows 2,000 characters in one message."""


class Message(Struct, frozen=True):
    """A message of one alert, raised or resolved; the body of a generic webhook."""

    event: Literal["alert.raised", "alert.resolved", "alert.closed", "alert.test"]
    cluster: str
    id: str
    rule: str
    severity: Literal["error", "warning", "info"]
    subject: str
    task: str
    worker: str
    text: str
    evidence: dict[str, float | str]
    raised_at: int
    resolved_at: int | None = None
    resolution: str = ""
    count: int = 1

    @property
    def resolved(self) -> bool:
        """Whether the condition of the alert ended."""
        return self.event == "alert.resolved"

    @property
    def title(self) -> str:
        """One line that says what happened."""
        state = STATES.get(self.event, self.severity)
        text = f"{self.rule}: {self.text}" if self.rule else self.text
        return shortened(f"[{state}] {' '.join(text.split())}")

    @property
    def details(self) -> str:
        """Further lines: why it is resolved, the subject, the evidence."""
        lines = [f"{STATES[self.event]}: {self.resolution}"] if self.resolution else []
        if self.rule:
            lines.append(f"{self.id} · {self.subject} · cluster {self.cluster}")
        given = (f"{name} {value if isinstance(value, str) else format(value, '.6g')}"
                 for name, value in self.evidence.items())  # fmt: skip
        if measured := ", ".join(given):
            lines.append(measured)
        if self.rule:
            lines.append(f"strata why alert alert={self.id}")
        return shortened("\n".join(lines))


def message_of(alert: Alert, cluster: str) -> Message:
    """The newest message of an alert."""
    closed: Literal["alert.resolved", "alert.closed"] = (
        "alert.closed" if alert.expired else "alert.resolved"
    )
    return Message(
        event="alert.raised" if alert.open else closed,
        cluster=cluster,
        id=alert.id,
        rule=alert.rule,
        severity=alert.severity,
        subject=alert.subject,
        task=alert.task,
        worker=alert.worker,
        text=alert.text,
        evidence=alert.evidence,
        raised_at=alert.raised_ns // 1_000_000,
        resolved_at=None if alert.open else alert.resolved_ns // 1_000_000,
        resolution=alert.resolution,
        count=alert.count,
    )


def test_message(cluster: str, now_ms: int) -> Message:
    """The message of `strata alerts test`."""
    return Message(
        event="alert.test",
        cluster=cluster,
        id="test",
        rule="",
        severity="info",
        subject="",
        task="",
        worker="",
        text=f"a test message of cluster {cluster}; nothing is wrong",
        evidence={},
        raised_at=now_ms,
    )


def form_of(url: str, form: Form) -> Form:
    """The form of JSON for a webhook: as set, else by the host of its URL."""
    if form != "auto":
        return form
    host = (urlsplit(url).hostname or "").lower()
    if host in SLACK_HOSTS:
        return "slack"
    return "discord" if host in DISCORD_HOSTS else "generic"


def webhook_body(message: Message, form: Form) -> bytes:
    """The JSON body for a webhook."""
    sign = RESOLVED_SIGN if message.resolved else SIGNS[message.severity]
    colour = RESOLVED_COLOUR if message.resolved else COLOURS[message.severity]
    if form == "slack":
        title, details = _for_slack(message.title), _for_slack(message.details)
        attachment = {"color": f"#{colour:06x}", "text": details, "mrkdwn_in": []}
        return msgspec.json.encode({"text": f"{sign} {title}", "attachments": [attachment]})
    if form == "discord":
        embed = {"description": message.details, "color": colour}
        allowed: dict[str, list[str]] = {"parse": []}
        return msgspec.json.encode(
            {"content": f"{sign} {message.title}", "embeds": [embed], "allowed_mentions": allowed}
        )
    return msgspec.json.encode(message)


def email_of(message: Message, sender: str, recipients: Sequence[str]) -> EmailMessage:
    """The e-mail of a message."""
    mail = EmailMessage()
    mail["From"] = sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = f"Strata {message.title}"[:200]
    mail["Date"] = formatdate(usegmt=True)
    mail["Message-ID"] = make_msgid(domain="strata.invalid")
    mail.set_content(f"{message.title}\n\n{message.details}\n")
    return mail


def shortened(text: str) -> str:
    """A text cut to what every channel takes."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"


def _for_slack(text: str) -> str:
    """Escape what Slack would read as a mention or a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
