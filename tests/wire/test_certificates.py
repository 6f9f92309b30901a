"""Dates of certificates, and the warnings about them."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from strata.agent.coordinator_link import channel_to, credentials_of
from strata.config import Settings
from strata.coordinator.server_certificates import server_certificates
from strata.sdk.session.channel import CoordinatorConnection, options_for, parse_address
from strata.wire.certificates import date_problem, dates_in
from strata.wire.client_certificates import client_certificates
from tests.cli.conftest import strata
from tests.coordinator.conftest import coordinator

NOW = datetime.now(UTC).replace(microsecond=0)
EXPIRED = (NOW - timedelta(days=400), NOW - timedelta(days=35))
EARLY = (NOW + timedelta(days=2), NOW + timedelta(days=100))
SOON = (NOW - timedelta(days=300), NOW + timedelta(days=3, hours=1))
FINE = (NOW - timedelta(days=1), NOW + timedelta(days=90))
SAYS = {"expired": (EXPIRED, "expired on"), "early": (EARLY, "not valid before")}
SAYS["soon"] = (SOON, "expires on")


@pytest.fixture
def issued(tmp_path):
    """Write a certificate with these dates; returns settings that name it."""

    def issue(since, until):
        made = trustme.CA().issue_cert("127.0.0.1", not_before=since, not_after=until)
        made.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
        made.private_key_pem.write_to_path(tmp_path / "key.pem")
        return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}

    return issue


@pytest.mark.parametrize(
    "dates", [EXPIRED, FINE, (datetime(1999, 1, 2, tzinfo=UTC), datetime(2061, 3, 4, tzinfo=UTC))]
)
def test_dates_are_those_of_the_certificate(issued, dates):
    with open(issued(*dates)["tls_cert"]) as file:
        (found,) = dates_in(file.read())
    assert (found.since, found.until) == dates


def test_valid_certificate_gives_no_warning(issued):
    assert date_problem(issued(*FINE)["tls_cert"]) == ""


def test_invalid_certificate_file_gives_no_warning(tmp_path):
    (tmp_path / "text.pem").write_text("no certificate\n")
    (tmp_path / "cut.pem").write_text("-----BEGIN CERTIFICATE-----\nMIIB\n")
    for name in ("text.pem", "cut.pem", "none.pem"):
        assert date_problem(str(tmp_path / name)) == ""


async def open_channel(settings):
    address = parse_address("127.0.0.1:1")
    await channel_to(address, credentials_of(settings), options_for(1)).close()


@pytest.mark.parametrize("case", SAYS)
def test_coordinator_agent_and_worker_warn_at_start(issued, caplog, case):
    dates, words = SAYS[case]
    files = issued(*dates)
    settings = Settings(coordinator_addr="127.0.0.1:1", **files)
    shown = f"{(dates[0] if case == 'early' else dates[1]):%Y-%m-%d}"
    starts = {
        "coordinator": lambda: server_certificates(settings),
        "agent": lambda: asyncio.run(open_channel(settings)),
        "sdk": lambda: CoordinatorConnection("127.0.0.1:1", tls=client_certificates(settings)),
    }
    for start in starts.values():
        caplog.clear()
        with caplog.at_level(logging.WARNING, "strata"):
            start()
        (record,) = caplog.records
        assert words in record.message
        assert shown in record.message


def test_client_is_told_the_dates_of_an_expired_certificate(issued, tmp_path):
    files = issued(*EXPIRED)
    with coordinator(tmp_path / "data", **files) as running:
        url = running.http_url
        unknown = strata("status", "--url", url, cwd=tmp_path)
        known = strata("status", "--url", url, cwd=tmp_path, STRATA_TLS_CERT="cert.pem")
    assert f"{EXPIRED[1]:%Y-%m-%d}" in known.stderr
    assert known.stderr.startswith("the certificate cert.pem expired on")
    for ended in (unknown, known):
        assert ended.returncode == 5
        assert "certificate" in ended.stderr
    assert "is not valid now" in known.stderr
    assert "renew the --tls-cert file" in known.stderr


def test_client_warns_of_a_certificate_that_expires_soon(issued, tmp_path):
    with coordinator(tmp_path / "data", **issued(*SOON)) as running:
        ended = strata(
            "status", "--url", running.http_url, cwd=tmp_path, STRATA_TLS_CERT="cert.pem"
        )
    assert ended.returncode == 0, ended.stderr
    assert "in 3 days" in ended.stderr
