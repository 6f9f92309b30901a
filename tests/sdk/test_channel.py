"""The connection to the coordinator: addresses, error classes, tokens and TLS."""

import ssl
import subprocess
import threading

import pytest

import strata
from strata.errors import (
    STATUS,
    InvalidArgument,
    NotFound,
    Overloaded,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.sdk.session.channel import (
    Address,
    CoordinatorConnection,
    apart,
    build,
    delays_s,
    error_of,
    parse_address,
)
from strata.wire.v1 import coordinator_pb2 as pb
from tests.coordinator.conftest import coordinator


@pytest.mark.parametrize(
    ("text", "address", "target"),
    [
        ("host:1", Address("host", 1, False), "host:1"),
        ("host", Address("host", 50051, False), "host:50051"),
        ("http://host:1/", Address("host", 1, False), "host:1"),
        ("https://host:1", Address("host", 1, True), "host:1"),
        (" 127.0.0.1:9 ", Address("127.0.0.1", 9, False), "127.0.0.1:9"),
        ("[::1]:7", Address("::1", 7, False), "[::1]:7"),
    ],
)
def test_addresses_are_parsed(text, address, target):
    assert parse_address(text) == address
    assert parse_address(text).target == target


@pytest.mark.parametrize(
    "text", ["", "http://", "ftp://h:1", "h:x", "h:70000", "http://h/path", "[::1"]
)
def test_invalid_address_is_an_error(text):
    with pytest.raises(InvalidArgument):
        parse_address(text)


@pytest.mark.parametrize("kind", STATUS)
def test_error_keeps_its_class_by_its_code(kind):
    assert type(error_of(kind.code, "INTERNAL", "m", "h")) is kind


def test_status_without_a_code_becomes_its_first_error_class():
    assert type(error_of("", "RESOURCE_EXHAUSTED", "m", "")).__name__ == "LimitExceeded"
    assert type(error_of("made_up", "NOT_FOUND", "m", "")) is NotFound
    assert type(error_of("", "NEVER_HEARD_OF", "m", "")) is StrataError
    assert isinstance(error_of("overloaded", "", "m", ""), Overloaded)


def test_delays_grow_to_a_limit_and_vary():
    delays = [delay for delay, _ in zip(delays_s(0.05, 2.0), range(20), strict=False)]
    assert 0.025 <= delays[0] <= 0.05
    assert all(1.0 <= delay <= 2.0 for delay in delays[8:])
    assert len(set(delays)) == len(delays)


def test_coordinators_hint_arrives(hub):
    connection = CoordinatorConnection(hub.address)
    with pytest.raises(NotFound, match="not registered") as caught:
        connection.call("Heartbeat", pb.HeartbeatRequest(worker_id="x"), pb.HeartbeatResponse)
    assert caught.value.hint == "register it first"
    connection.close()


def test_token_is_needed_and_sent(tmp_path, monkeypatch):
    with coordinator(tmp_path / "data", token="secret") as started:
        address = f"127.0.0.1:{started.grpc_port}"
        with pytest.raises(Unauthenticated, match="token"):
            strata.join(address, capture=False)
        monkeypatch.setenv("STRATA_TOKEN", "secret")
        with strata.join(address, capture=False, spool_dir=tmp_path) as run:
            assert run.rank == 0


def test_tls_with_a_self_signed_certificate(tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    assert ssl.create_default_context(cafile=str(certificate))
    with coordinator(tmp_path / "d", tls_cert=str(certificate), tls_key=str(key)) as started:
        with pytest.raises(Unavailable):
            strata.join(f"127.0.0.1:{started.grpc_port}", capture=False, connect_timeout=0.3)
        monkeypatch.setenv("STRATA_TLS_CERT", str(certificate))
        address = f"https://localhost:{started.grpc_port}"
        with strata.join(address, capture=False, spool_dir=tmp_path) as run:
            assert run.barrier("b").participants == 1


@pytest.mark.parametrize("wrong", ["8", 8.5, float("nan"), 10**20])
def test_field_that_cannot_be_sent_is_named(wrong):
    with pytest.raises(InvalidArgument, match=r"batch_size is .*whole numbers"):
        build(pb.AttachDataset, dataset_id="d", batch_size=wrong)


def test_main_thread_never_calls_grpc_directly():
    entered = []
    assert apart(lambda: entered.append(threading.current_thread()) or 7) == 7
    assert entered[0] is not threading.main_thread()
    with pytest.raises(NotFound, match="no such thing"):
        apart(lambda: _raise(NotFound("no such thing")))


def _raise(error):
    raise error
