"""Guards the messages about alerts, against real HTTP and SMTP servers: retries and their bound,
one delivery after a restart, no secrets in what is recorded, and an engine that never waits."""

import asyncio
import socket
import threading

import httpx
import pytest

from strata.config import Settings
from strata.coordinator.alerts import delivery
from strata.coordinator.alerts.channels import ChannelError, Webhook
from strata.coordinator.alerts.messages import test_message as message_of_test
from strata.core.alerts.alert_record import (
    AlertDelivered,
    AlertDeliveryFailed,
    Ending,
    Finding,
    RecordAlerts,
)
from strata.errors import SettingError
from tests.agent.harness import until
from tests.coordinator.alert_servers import mail_server, webhook
from tests.coordinator.conftest import coordinator

FOUND = Finding(
    rule="no_step",
    subject="task:t",
    severity="error",
    text="t has made no step for 300 s <now>",
    evidence={"limit_s": 300.0, "state": "running"},
    task="t",
)
ENDED = Ending(rule="no_step", subject="task:t", reason="step 6 was committed")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Short delays between attempts, so that tests need not wait."""
    monkeypatch.setattr(delivery, "DELAYS_S", (0.05,))


def record(started, *changes, channel="webhook"):
    """Record changes in the running coordinator, as its rules do."""
    alerts = RecordAlerts(changes=changes, channels={"error": [channel]})
    loop = started.engine._task.get_loop()
    return asyncio.run_coroutine_threadsafe(started.engine.submit(alerts), loop).result(20)


def facts(started, *kinds):
    return [event.body for event in list(started.engine.recent) if isinstance(event.body, kinds)]


def outcomes(started):
    return facts(started, AlertDelivered, AlertDeliveryFailed)


def test_failing_webhook_is_tried_again_until_it_takes_the_message(tmp_path):
    serving = webhook(500, 302, 429, headers={"Retry-After": "0.1", "Location": "/"})
    with serving as hook, coordinator(tmp_path, alert_webhook=hook.url) as started:
        record(started, FOUND)
        (told,) = until(lambda: outcomes(started), "a delivery")
        assert isinstance(told, AlertDelivered)
        assert (told.channel, told.moment, told.attempts) == ("webhook", "raised", 4)
        record(started, ENDED)
        until(lambda: len(outcomes(started)) == 2, "the second message")
    raised, resolved = hook.taken
    assert (raised["event"], raised["id"], raised["rule"]) == ("alert.raised", "alert-1", "no_step")
    assert raised["evidence"] == {"limit_s": 300.0, "state": "running"}
    assert raised["resolved_at"] is None
    assert (resolved["event"], resolved["resolution"]) == ("alert.resolved", ENDED.reason)


def test_webhook_that_keeps_failing_is_given_up_and_the_reason_has_no_secret(tmp_path, caplog):
    codes = [503] * 100
    with webhook(*codes) as hook, coordinator(tmp_path, alert_webhook=hook.url) as started:
        record(started, FOUND)
        (failed,) = until(lambda: outcomes(started), "a failure")
        assert isinstance(failed, AlertDeliveryFailed)
        assert (failed.attempts, failed.reason) == (6, "HTTP 503 Service Unavailable")
        assert hook.requests == 6
        record(started, ENDED)
        until(lambda: len(outcomes(started)) == 2, "the second failure")
        assert hook.requests == 7  # while it is down, once
        [shown] = httpx.get(f"{started.http_url}/api/alerts").json()
        assert (shown["pending"], shown["failed"]) == ([], ["webhook"])
        settings = httpx.get(f"{started.http_url}/api/settings").json()
        assert settings["values"]["alert_webhook"] == "***"
        everything = str(list(started.engine.recent)) + caplog.text
    assert "s3cret" not in everything


def test_server_that_never_answers_delays_neither_the_engine_nor_its_end(tmp_path):
    with webhook(0, 0, 0) as hook:
        with coordinator(tmp_path, alert_webhook=hook.url) as started:
            record(started, FOUND)
            until(lambda: hook.requests, "a request")
            for number in range(50):
                subject = f"task:{number}"
                record(started, Finding(rule="no_step", subject=subject, severity="error", text=""))
            assert httpx.get(f"{started.http_url}/api/status").status_code == 200
            assert outcomes(started) == []
        assert hook.requests == 1  # the coordinator has ended, although the request has not


def test_message_that_was_pending_is_delivered_once_after_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "DELAYS_S", (60.0,))
    with webhook(500) as hook:
        with coordinator(tmp_path, alert_webhook=hook.url) as started:
            record(started, FOUND)
            until(lambda: hook.requests, "an attempt")
        with coordinator(tmp_path, alert_webhook=hook.url) as started:
            until(lambda: outcomes(started), "a delivery")
        with coordinator(tmp_path, alert_webhook=hook.url) as started:
            record(started, ENDED)
            until(lambda: outcomes(started), "the second message")
    assert [each["event"] for each in hook.taken] == ["alert.raised", "alert.resolved"]


def test_message_for_a_channel_that_was_removed_is_recorded_as_failed(tmp_path):
    with webhook(*[500] * 100) as hook:
        with coordinator(tmp_path, alert_webhook=hook.url) as started:
            record(started, FOUND)
            until(lambda: hook.requests, "an attempt")
        with coordinator(tmp_path) as started:
            (failed,) = until(lambda: outcomes(started), "a failure")
    assert failed.reason == "the channel is not set up any more"


@pytest.mark.parametrize("security", ["starttls", "tls"])
def test_mail_is_sent_over_tls_with_login(tmp_path, security):
    serving = mail_server(tmp_path, security=security)
    with serving as (mailbox, settings), coordinator(tmp_path, **settings) as started:
        record(started, FOUND, channel="email")
        (told,) = until(lambda: outcomes(started), "a mail")
        everything = str(list(started.engine.recent))
    assert isinstance(told, AlertDelivered), told
    assert mailbox.logins == [(b"strata", b"s3cret")]
    [(recipients, mail)] = mailbox.mails
    assert recipients == ["ops@example.org", "oncall@example.org"]
    assert "Subject: Strata [error] no_step: t has made no step for 300 s <now>" in mail
    assert "limit_s 300, state running" in mail
    assert "s3cret" not in everything


def test_mail_server_with_another_certificate_is_refused(tmp_path):
    serving, ca = mail_server(tmp_path, security="tls"), {"alert_ca": ""}
    with serving as (mailbox, settings), coordinator(tmp_path, **(settings | ca)) as started:
        record(started, FOUND, channel="email")
        (failed,) = until(lambda: outcomes(started), "a failure")
    assert "CERTIFICATE_VERIFY_FAILED" in failed.reason
    assert mailbox.logins == []


def test_test_message_says_for_each_channel_what_happened(tmp_path):
    with webhook() as hook, mail_server(tmp_path, security="starttls") as (_, settings):
        wrong = {**settings, "alert_smtp_password": "wrong", "alert_email_to": "no@example.org"}
        with coordinator(tmp_path, alert_webhook=hook.url, **wrong) as started:
            answer = httpx.post(f"{started.http_url}/api/alerts/test", timeout=60)
    assert answer.status_code == 200
    webhooked, mailed = answer.json()
    assert webhooked == {"channel": "webhook", "target": "127.0.0.1", "error": ""}
    assert (mailed["channel"], mailed["target"]) == ("email", "no@example.org")
    assert "SMTP 535" in mailed["error"]
    assert hook.taken[0]["event"] == "alert.test"
    with coordinator(tmp_path) as started:
        answer = httpx.post(f"{started.http_url}/api/alerts/test", timeout=60)
    assert answer.status_code == 409
    assert "alert_webhook" in answer.json()["error"]["hint"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"alert_webhook": "hooks.example.org/x"}, "alert_webhook is not an http or https URL"),
        ({"alert_webhook": "http://h.example/s3cret x"}, "alert_webhook is not a valid URL"),
        ({"alert_webhook": "http://h.example/s3cret\x7f"}, "alert_webhook is not a valid URL"),
        ({"alert_webhook": "http://u:s3cret@h.example:x/"}, "alert_webhook is not a valid URL"),
        ({"alert_webhook": "http://[s3cret/"}, "alert_webhook is not a valid URL"),
        ({"alert_email_to": "a@example.org"}, "needs a mail server"),
        ({"alerts_off": "no_step, lost_loss"}, "unknown rules: lost_loss"),
    ],
)
def test_wrong_setting_is_an_error_at_the_start(tmp_path, settings, said):
    with pytest.raises(SettingError, match=said) as raised, coordinator(tmp_path, **settings):
        pass
    assert "s3cret" not in f"{raised.value} {raised.value.hint}"


def test_invalid_http_response_is_named_by_its_type_without_its_text():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(b"/s3cret\n\n")

        threading.Thread(target=answer, daemon=True).start()
        channel = Webhook(Settings(alert_webhook=f"http://127.0.0.1:{server.getsockname()[1]}/x"))
        with pytest.raises(ChannelError) as raised:
            channel.send(message_of_test("c", 1))
    assert str(raised.value) == "127.0.0.1: BadStatusLine"
