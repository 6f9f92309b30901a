"""Guards the sources of S3 credentials: settings, or the machine's role if enabled."""

import json
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from strata.config import AWS_IDENTITIES
from strata.errors import Unauthenticated
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET
from tests.storage.test_s3 import IMPATIENT, changed, every_call

ROLE = "/latest/meta-data/iam/security-credentials/"


class Metadata:
    """A cloud's metadata address, on loopback; `asked` lists its requests."""

    def __init__(self, settings) -> None:
        self.asked: list[str] = []
        self.status = 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_):
                pass

            def answer(self):
                outer.asked.append(self.path)
                until = datetime.now(UTC) + timedelta(hours=1)
                body = "worker-role"
                if self.path.startswith(f"{ROLE}worker-role"):
                    body = json.dumps(
                        {
                            "AccessKeyId": settings.aws_access_key_id,
                            "SecretAccessKey": settings.aws_secret_access_key,
                            "Token": "",
                            "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ"),
                        }
                    )
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_PUT = answer

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,)).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def metadata(s3_settings, monkeypatch):
    for name in AWS_IDENTITIES:
        monkeypatch.delenv(name, raising=False)
    server = Metadata(s3_settings)
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url)
    yield server
    server.close()


@pytest.fixture
def nobody(s3_settings):
    return changed(s3_settings, aws_access_key_id="", aws_secret_access_key="")


def test_missing_credentials_are_reported_without_a_request(nobody, metadata):
    storage = S3Storage(BUCKET, "x", nobody, **IMPATIENT)
    for call in every_call(storage):
        with pytest.raises(Unauthenticated, match="no credentials") as raised:
            call()
        assert "s3:" not in raised.value.hint
        assert "STRATA_AWS_INSTANCE_ROLE" in raised.value.hint
    assert metadata.asked == []


def test_half_of_a_key_names_the_other_half(s3_settings, metadata):
    for field in ("aws_access_key_id", "aws_secret_access_key"):
        storage = S3Storage(BUCKET, "x", changed(s3_settings, **{field: ""}), **IMPATIENT)
        with pytest.raises(Unauthenticated, match=f"{field.upper()} is not"):
            storage.list()
    assert metadata.asked == []


def test_machine_role_is_used_if_enabled(nobody, metadata):
    storage = S3Storage(BUCKET, "role", changed(nobody, aws_instance_role=True), **IMPATIENT)
    storage.put("a", b"x")
    assert storage.get("a") == b"x"
    assert ROLE in metadata.asked


def test_machine_without_a_role_is_reported(nobody, metadata):
    metadata.status = 403
    storage = S3Storage(BUCKET, "role", changed(nobody, aws_instance_role=True), **IMPATIENT)
    with pytest.raises(Unauthenticated, match="returned no role credentials"):
        storage.list()


def test_refused_unsigned_request_does_not_ask_for_a_permission(nobody, metadata, monkeypatch):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    storage = S3Storage(BUCKET, "x", nobody, **IMPATIENT)
    with pytest.raises(Unauthenticated, match="AWS_SKIP_SIGNATURE"):
        storage.list()
    assert metadata.asked == []
