"""TLS of the coordinator: client certificates, renewed files, versions; over real connections."""

import logging
import os
import socket
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

import strata
from strata.agent.coordinator_link import credentials_of
from strata.cli.support.doctor.certificate_checks import file_checks, served_check
from strata.cli.support.rest_client import Api
from strata.config import Settings
from strata.coordinator.rest.encrypted_accept import Handshakes
from strata.coordinator.server_certificates import server_certificates
from strata.errors import InvalidArgument, NotFound, PermissionDenied, SettingError, Unavailable
from strata.sdk.session.channel import CoordinatorConnection
from strata.wire.client_certificates import ClientCertificates
from strata.wire.v1 import coordinator_pb2 as pb
from tests.agent.harness import until
from tests.coordinator.conftest import coordinator

NOW = datetime.now(UTC).replace(microsecond=0)
PAST = (NOW - timedelta(days=40), NOW - timedelta(days=5))


class Files:
    """A folder with an authority, and certificates that it or another one issues."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.other = trustme.CA(), trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.authority.cert_pem.write_to_path(self.ca)

    def issue(self, name, identity="client@example.org", by=None, dates=(None, None)):
        """Write a certificate and its key, each at once; returns their paths."""
        made = (by or self.authority).issue_cert(identity, not_before=dates[0], not_after=dates[1])
        paths = [str(self.folder / f"{name}.{end}") for end in ("pem", "key")]
        blobs = (made.cert_chain_pems[0].bytes(), made.private_key_pem.bytes())
        for path, content in zip(paths, blobs, strict=True):
            Path(f"{path}.new").write_bytes(content)
            os.replace(f"{path}.new", path)
        return paths

    def server(self, **more):
        cert, key = self.issue("server", "127.0.0.1")
        return {"tls_cert": cert, "tls_key": key} | more

    def client(self, *pair):
        return ClientCertificates(self.ca, *pair)


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def shown_certificate(port, ca):
    """The certificate that a server presents to a new connection, verified."""
    context = ssl.create_default_context(cafile=ca)
    with (
        socket.create_connection(("127.0.0.1", port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        return ssl.DER_cert_to_PEM_cert(encrypted.getpeercert(True)).strip()


def grpc_error(address, tls):
    """The error of a call with these certificates; None if it reached a handler."""
    connection = CoordinatorConnection(address, tls=tls)
    try:
        connection.call("Heartbeat", pb.HeartbeatRequest(worker_id="w"), pb.HeartbeatResponse, 20)
    except Unavailable as error:
        return error
    except NotFound:  # the worker, by the handler
        return None
    finally:
        connection.close()
    raise AssertionError("an unknown worker has no heartbeat")


def test_client_certificate_is_required(files, caplog):
    good = files.client(*files.issue("good"))
    strange = files.client(*files.issue("strange", by=files.other))
    expired = files.client(*files.issue("expired", dates=PAST))
    with coordinator(files.folder / "data", **files.server(tls_client_ca=files.ca)) as started:
        address = f"127.0.0.1:{started.grpc_port}"
        assert Api(started.http_url, tls=good).get("/api/status").body
        assert grpc_error(address, good) is None
        with pytest.raises(PermissionDenied, match="requires a client certificate") as refused:
            Api(started.http_url, tls=files.client()).get("/api/status")
        assert "STRATA_TLS_CLIENT_CERT" in refused.value.hint
        assert "STRATA_TLS_CLIENT_CERT" in grpc_error(address, files.client()).hint
        for wrong, reason in ((strange, "strange.pem"), (expired, "expired on")):
            with pytest.raises(Unavailable, match=r"does not accept .*\.pem"):
                Api(started.http_url, tls=wrong).get("/api/status")
            assert reason in grpc_error(address, wrong).hint
    assert "a TLS handshake with 127.0.0.1 failed: peer did not return" in caplog.text


def test_server_of_another_authority_is_refused(files):
    unknown = ClientCertificates(ca=str(files.folder / "other.pem"))
    files.other.cert_pem.write_to_path(unknown.ca)
    with coordinator(files.folder / "data", **files.server()) as started:
        error = grpc_error(f"127.0.0.1:{started.grpc_port}", unknown)
        assert "STRATA_TLS_CA" in error.hint
        with pytest.raises(Unavailable, match="cannot be trusted"):
            Api(started.http_url, tls=unknown).get("/api/status")


def test_server_of_another_name_is_refused(files):
    cert, key = files.issue("server", "elsewhere.example.org")
    with coordinator(files.folder / "data", tls_cert=cert, tls_key=key) as started:
        error = grpc_error(f"127.0.0.1:{started.grpc_port}", files.client())
        assert "for which its certificate was issued" in error.hint
        with pytest.raises(Unavailable, match="not valid for"):
            Api(started.http_url, tls=files.client()).get("/api/status")


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_old_protocol_versions_are_refused(files):
    with coordinator(files.folder / "data", **files.server()) as started:
        for port in (started.grpc_port, int(started.http_url.rpartition(":")[2])):
            found = {}
            for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2):
                context = ssl.create_default_context(cafile=files.ca)
                context.set_ciphers("ALL:@SECLEVEL=0")
                context.set_alpn_protocols(["h2", "http/1.1"])
                context.minimum_version = context.maximum_version = version
                with socket.create_connection(("127.0.0.1", port), 10) as plain:
                    try:
                        context.wrap_socket(plain, server_hostname="127.0.0.1").close()
                        found[version] = "accepted"
                    except OSError as error:
                        found[version] = getattr(error, "reason", "") or "refused"
            old, new = found.values()
            assert new == "accepted"
            assert old not in ("accepted", "NO_PROTOCOLS_AVAILABLE")  # the client would speak it


def test_renewed_certificate_is_used_without_ending_sessions(files, tmp_path, caplog):
    caplog.set_level(logging.INFO, "strata")
    given = files.server()
    with coordinator(files.folder / "data", **given) as started:
        ports = [started.grpc_port, int(started.http_url.rpartition(":")[2])]
        tls = {"STRATA_TLS_CA": files.ca}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(*next(iter(tls.items())))
            run = strata.join(f"127.0.0.1:{ports[0]}", capture=False, spool_dir=tmp_path / "spool")
        with run:
            before = Path(given["tls_cert"]).read_text().strip()
            assert [shown_certificate(port, files.ca) for port in ports] == [before] * 2
            files.server()
            after = Path(given["tls_cert"]).read_text().strip()
            assert before != after
            for port in ports:
                until(lambda port=port: shown_certificate(port, files.ca) == after, "the new one")
            assert run.barrier("b").participants == 1
            Path(given["tls_key"]).write_text("-----BEGIN PRIVATE KEY-----\nnonsense\n")
            until(lambda: "the changed certificate files are refused" in caplog.text, "the refusal")
            assert [shown_certificate(port, files.ca) for port in ports] == [after] * 2
            assert run.barrier("c").participants == 1
    assert caplog.text.count("joined as incarnation") == 1
    assert "declared lost" not in caplog.text
    assert "new connections use the changed certificate" in caplog.text


def test_expired_new_certificate_is_refused(files, caplog):
    given = files.server()
    certificates = server_certificates(Settings(**given))
    files.issue("server", "127.0.0.1", dates=PAST)
    certificates.look()
    assert not caplog.records  # the files may still be written
    certificates.look()
    assert "the old ones stay in use" in caplog.text
    assert "is valid only from" in caplog.text


def test_client_uses_its_renewed_certificate(files):
    pair = files.issue("own", by=files.other)
    settings = Settings(
        coordinator_addr="127.0.0.1",
        tls_ca=files.ca,
        tls_client_cert=pair[0],
        tls_client_key=pair[1],
    )
    credentials = credentials_of(settings)
    first = credentials.newest()
    assert credentials.newest() is first
    connection = CoordinatorConnection("127.0.0.1:1", tls=credentials.tls)
    with coordinator(files.folder / "data", **files.server(tls_client_ca=files.ca)) as started:
        connection = CoordinatorConnection(f"127.0.0.1:{started.grpc_port}", tls=credentials.tls)
        ask = ("Heartbeat", pb.HeartbeatRequest(worker_id="w"), pb.HeartbeatResponse, 20)
        with pytest.raises(Unavailable, match="cannot be reached"):
            connection.call(*ask)
        files.issue("own")
        connection.renew()
        with pytest.raises(NotFound, match="is not registered"):
            connection.call(*ask)
        connection.close()
    assert credentials.newest() is not first
    second = credentials.newest()
    Path(pair[1]).unlink()
    assert credentials.newest() is second


def encrypted_key(path):
    text = Path(path).read_text().replace("RSA PRIVATE", "ENCRYPTED PRIVATE")
    Path(path).write_text(text.replace("EC PRIVATE", "ENCRYPTED PRIVATE"))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (
            lambda files, pair: Path(pair[1]).unlink(),
            "cannot read the private key .*c.key",
        ),
        (lambda files, pair: Path(pair[0]).write_text("x"), "certificate .*c.pem cannot be used"),
        (lambda files, pair: os.replace(files.issue("d")[1], pair[1]), "does not belong to"),
        (lambda files, pair: encrypted_key(pair[1]), "encrypted with a passphrase"),
    ],
)
def test_unusable_pair_is_named(files, spoil, words):
    pair = files.issue("c")
    spoil(files, pair)
    with pytest.raises(SettingError, match=words):
        server_certificates(Settings(tls_cert=pair[0], tls_key=pair[1]))
    with pytest.raises(SettingError, match=words):
        files.client(*pair).https_context()
    with pytest.raises(SettingError, match=words):
        CoordinatorConnection("127.0.0.1:1", tls=files.client(*pair))


def test_client_authority_needs_a_server_certificate(files):
    with pytest.raises(SettingError, match="no certificate of its own"):
        server_certificates(Settings(tls_client_ca=files.ca))


def test_settings_with_certificates_mean_tls(files):
    """No token is sent in clear text because an address lacks its scheme."""
    tls = files.client()
    assert Api("127.0.0.1:3000", tls=tls).secure
    assert CoordinatorConnection("http://203.0.113.7:1", tls=tls).encrypted
    assert not CoordinatorConnection("http://127.0.0.1:1", tls=tls).encrypted
    with pytest.raises(InvalidArgument, match="in clear text to another machine"):
        Api("http://203.0.113.7:3000", tls=tls)
    assert not Api("http://127.0.0.1:3000", tls=tls).secure
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        connection = CoordinatorConnection(address, token="secret-token", tls=tls)
        call = connection.session(iter([]))
        link, _ = server.accept()
        link.settimeout(5)
        first, deadline = b"", time.monotonic() + 5
        while len(first) < 3 and time.monotonic() < deadline:
            first += link.recv(4096)
        call.cancel()
        connection.close()
        link.close()
    assert first[:1] == b"\x16", "a TLS handshake record"
    assert b"secret-token" not in first


def test_doctor_reads_the_dates_of_certificates(files):
    soon = (NOW - timedelta(days=100), NOW + timedelta(days=4))
    cert, key = files.issue("server", "127.0.0.1", dates=soon)
    with coordinator(files.folder / "data", tls_cert=cert, tls_key=key) as started:
        api = Api(started.http_url, tls=files.client())
        (own,) = file_checks(Settings(tls_ca=files.ca))
        assert (own.status, served_check(api).status) == ("ok", "fix")
        assert f"expires on {soon[1]:%Y-%m-%d}" in served_check(api).found
    (gone,) = file_checks(Settings(tls_client_cert="nowhere.pem"))
    assert gone.status == "fix"


def test_unfinished_handshakes_do_not_keep_others_out(files, monkeypatch):
    monkeypatch.setattr(Handshakes.__init__, "__defaults__", (3,))
    with coordinator(files.folder / "data", **files.server()) as started:
        port = int(started.http_url.rpartition(":")[2])
        silent = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(5)]
        try:
            assert [link.recv(1) for link in silent[:2]] == [b"", b""]
            for _ in range(3):
                assert Api(started.http_url, tls=files.client()).get("/api/status").body
        finally:
            for link in silent:
                link.close()
