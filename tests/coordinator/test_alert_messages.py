"""The forms of messages: what Slack, Discord and a generic webhook get for the same alert."""

import json

import pytest

from strata.coordinator.alerts.messages import email_of, form_of, message_of, webhook_body
from strata.core.state import Alert


def alert(**fields):
    given = {
        "id": "alert-7",
        "rule": "task_failed",
        "severity": "error",
        "subject": "task:t",
        "text": "t failed: <!channel> & more\nlines",
        "raised_ns": 1_700_000_000_123_000_000,
        "position": 9,
        "task": "t",
        "evidence": {"exit_code": 3.0},
    }
    return Alert(**(given | fields))


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://discord.com/api/webhooks/1/x", "discord"),
        ("https://example.org/slack.com", "generic"),
    ],
)
def test_form_follows_from_the_host_unless_it_is_set(url, form):
    assert form_of(url, "auto") == form
    assert form_of(url, "generic") == "generic"


def test_slack_gets_text_that_mentions_nobody():
    body = json.loads(webhook_body(message_of(alert(), "c"), "slack"))
    assert body["text"] == "❌ [error] task_failed: t failed: &lt;!channel&gt; &amp; more lines"
    [attachment] = body["attachments"]
    assert attachment["color"] == "#d64545"
    assert "exit_code 3" in attachment["text"]


def test_discord_gets_an_embed_that_mentions_nobody():
    resolved = alert(resolved_ns=1_700_000_060_000_000_000, resolution="the task runs again")
    body = json.loads(webhook_body(message_of(resolved, "c"), "discord"))
    assert body["content"].startswith("✅ [resolved] task_failed: t failed:")
    assert body["embeds"][0]["description"].startswith("resolved: the task runs again")
    assert body["allowed_mentions"] == {"parse": []}
    assert len(body["content"]) < 2_000


def test_message_of_an_expired_alert_says_closed_and_has_no_check_mark():
    expired = alert(resolved_ns=1_700_003_600_000_000_000, resolution="after 1 h", expired=True)
    message = message_of(expired, "c")
    assert message.event == "alert.closed"
    body = json.loads(webhook_body(message, "discord"))
    assert body["content"].startswith("❌ [closed] task_failed: t failed:")
    assert body["embeds"][0]["description"].startswith("closed: after 1 h")


def test_long_text_is_cut_to_what_every_channel_takes():
    body = json.loads(webhook_body(message_of(alert(text="x" * 4_000), "c"), "discord"))
    assert len(body["content"]) < 2_000
    mail = email_of(message_of(alert(text="y" * 4_000), "c"), "a@example.org", ["b@example.org"])
    assert len(mail["Subject"]) == 200


def test_generic_webhook_gets_every_field():
    body = json.loads(webhook_body(message_of(alert(), "c"), "generic"))
    assert body == {
        "event": "alert.raised",
        "cluster": "c",
        "id": "alert-7",
        "rule": "task_failed",
        "severity": "error",
        "subject": "task:t",
        "task": "t",
        "worker": "",
        "text": "t failed: <!channel> & more\nlines",
        "evidence": {"exit_code": 3.0},
        "raised_at": 1_700_000_000_123,
        "resolved_at": None,
        "resolution": "",
        "count": 1,
    }
