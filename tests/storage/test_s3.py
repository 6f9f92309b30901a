"""Guards what is special to S3: errors that name the setting, retries, left-over uploads."""

import socket
import time

import msgspec
import pytest

from strata.errors import (
    Corrupt,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StrataError,
    Unauthenticated,
    Unavailable,
)
from strata.storage import s3, s3_multipart
from strata.storage.locations import open_storage
from strata.storage.s3 import PART_BYTES, S3Storage
from strata.storage.s3_requests import S3Requests
from tests.storage.faulty import faulty_proxy
from tests.storage.server import BUCKET
from tests.storage.sts import temporary

MIB = 1024 * 1024
IMPATIENT = {"max_retries": 2, "retry_timeout_s": 5.0, "request_timeout_s": 2.0}


def changed(settings, **changes):
    return msgspec.structs.replace(settings, **changes)


@pytest.fixture
def faulty(s3_settings):
    with faulty_proxy(s3_settings) as (settings, faults):
        yield S3Storage(BUCKET, f"faulty/{time.monotonic_ns()}", settings, **IMPATIENT), faults


def every_call(storage):
    return [
        lambda: storage.put("a", b"x"),
        lambda: storage.put_stream("a", [b"x"]),
        lambda: storage.get("a"),
        storage.list,
        storage.walk,
    ]


@pytest.mark.parametrize(
    ("changes", "kind", "variable"),
    [
        ({"aws_access_key_id": "nobody"}, Unauthenticated, "AWS_ACCESS_KEY_ID"),
        ({"aws_secret_access_key": "wrong"}, Unauthenticated, "AWS_SECRET_ACCESS_KEY"),
    ],
)
def test_wrong_credentials_name_the_variable(s3_settings, changes, kind, variable):
    storage = S3Storage(BUCKET, "x", changed(s3_settings, **changes), **IMPATIENT)
    for call in every_call(storage):
        with pytest.raises(kind, match=variable) as raised:
            call()
        assert changes.get("aws_secret_access_key", "no secret") not in str(raised.value)
    with pytest.raises(kind, match=variable):
        storage.abort_uploads(0.0)


def test_a_missing_bucket_is_named(s3_settings):
    for call in every_call(S3Storage("no-such-bucket", "x", s3_settings, **IMPATIENT)):
        with pytest.raises(NotFound, match=r"no bucket no-such-bucket.*CHECKPOINT_BUCKET"):
            call()


def test_a_refusal_names_the_permission(faulty):
    storage, faults = faulty
    faults.always("denied")
    for call, permission in (
        (lambda: storage.put("a", b""), "s3:PutObject"),
        (lambda: storage.get("a"), "s3:GetObject"),
        (storage.list, "s3:ListBucket"),
        (lambda: storage.delete("a"), "s3:DeleteObject"),
    ):
        with pytest.raises(PermissionDenied, match=permission):
            call()


def test_unreachable_server_names_the_endpoint(s3_settings):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    gone = changed(s3_settings, aws_endpoint_url=f"http://127.0.0.1:{port}")
    storage = S3Storage(BUCKET, "x", gone, **IMPATIENT)
    for call in [*every_call(storage), lambda: storage.abort_uploads(0.0)]:
        with pytest.raises(Unavailable, match="AWS_ENDPOINT_URL"):
            call()


@pytest.mark.parametrize("fault", ["internal", "slow_down", "throttled", "reset"])
def test_temporary_error_is_retried(faulty, fault):
    storage, faults = faulty
    storage.put("there", b"x" * 100_000)
    for call in (
        lambda: storage.put("a", b"x"),
        lambda: storage.put_stream("b", [b"y" * (PART_BYTES + 1)]),
        lambda: storage.get("there"),
        lambda: storage.download("there", memoryview(bytearray(100_000))),
        storage.walk,
    ):
        faults.first(1, fault)
        call()
    assert storage.get("b") == b"y" * (PART_BYTES + 1)


def test_truncated_response_is_retried(faulty):
    storage, faults = faulty
    storage.put("there", b"x" * 100_000)
    buffer = bytearray(100_000)
    for call in (
        lambda: storage.get("there"),
        lambda: storage.download("there", memoryview(buffer)),
        storage.walk,
    ):
        faults.first(1, "truncate")
        call()
    assert buffer == b"x" * 100_000


def test_permanent_error_is_reported_after_few_requests(faulty):
    storage, faults = faulty
    faults.always("internal")
    for call in every_call(storage):
        before = len(faults.seen)
        with pytest.raises(Unavailable, match="500 InternalError"):
            call()
        assert len(faults.seen) - before <= 2 * (IMPATIENT["max_retries"] + 1)


@pytest.mark.slow
def test_request_to_a_hanging_server_times_out(faulty):
    storage, faults = faulty
    faults.always("hang", "GET")
    with pytest.raises(StrataError):
        storage.get("a")


def test_credentials_that_expire_during_an_upload_leave_no_object(faulty):
    storage, faults = faulty
    faults.always("expired", "PUT", "partNumber=3")
    with pytest.raises(Unauthenticated, match="AWS_SESSION_TOKEN"):
        storage.put_stream("a", [bytes(PART_BYTES)] * 4)
    faults.always("")
    assert not storage.exists("a")
    assert storage.abort_uploads(0.0) == 0


def test_object_replaced_while_being_read_raises(s3_storage):
    s3_storage.put("a", b"old" * 100)
    with s3_storage.open("a") as reader:
        s3_storage.put("a", b"new" * 100)
        with pytest.raises(StrataError):
            reader.read_into(0, [memoryview(bytearray(10))])


def test_left_over_uploads_below_the_prefix_are_aborted_by_age(s3_settings):
    storage = S3Storage(BUCKET, "left-over", s3_settings)
    for key in ("left-over/x/part", "elsewhere/part"):
        S3Requests(BUCKET, s3_settings, "begin", "").call("POST", key, {"uploads": ""})
    assert storage.abort_uploads(older_than_s=3600.0) == 0
    assert storage.abort_uploads(older_than_s=0.0) == 1
    assert storage.abort_uploads(older_than_s=0.0) == 0
    assert S3Storage(BUCKET, "elsewhere", s3_settings).abort_uploads(0.0) == 1


def test_temporary_credentials_do_everything_that_lasting_ones_do(s3_settings, monkeypatch):
    borrowed = temporary(s3_settings)
    storage = S3Storage(BUCKET, "temporary", borrowed, **IMPATIENT)
    storage.put("a", bytes(11 * MIB))
    assert storage.get("a") == bytes(11 * MIB)
    S3Requests(BUCKET, borrowed, "begin", "").call("POST", "temporary/part", {"uploads": ""})
    assert storage.abort_uploads(older_than_s=0.0) == 1
    monkeypatch.setattr(s3, "WHOLE_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_multipart, "PART_BYTES", 5 * MIB)
    assert storage.link("a", "b")
    assert storage.get("b") == bytes(11 * MIB)


def test_temporary_credentials_without_their_token_are_refused(s3_settings):
    keyless = changed(temporary(s3_settings), aws_session_token="")
    storage = S3Storage(BUCKET, "temporary", keyless, **IMPATIENT)
    for call in [lambda: storage.put("a", b"x"), lambda: storage.abort_uploads(0.0)]:
        with pytest.raises(Unauthenticated, match="AWS_ACCESS_KEY_ID"):
            call()


def test_aborting_uploads_without_keys_is_no_error(s3_settings):
    nobody = changed(s3_settings, aws_access_key_id="", aws_secret_access_key="")
    assert S3Storage(BUCKET, "x", nobody).abort_uploads(0.0) == 0


def test_large_object_is_copied_by_parts(s3_storage, s3_settings, monkeypatch):
    monkeypatch.setattr(s3, "WHOLE_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_multipart, "PART_BYTES", 5 * MIB)
    data = bytes(range(256)) * (11 * MIB // 256)
    s3_storage.put("folder/a b+ü", data)
    assert s3_storage.link("folder/a b+ü", "other/a")
    assert s3_storage.get("other/a") == data
    nobody = changed(s3_settings, aws_access_key_id="", aws_secret_access_key="")
    assert not s3_multipart.copy_by_parts(BUCKET, "a", "b", 11 * MIB, nobody)


def test_failed_copy_leaves_no_object(faulty, monkeypatch):
    storage, faults = faulty
    monkeypatch.setattr(s3, "WHOLE_BYTES", 5 * MIB)
    monkeypatch.setattr(s3_multipart, "PART_BYTES", 5 * MIB)
    storage.put("a", bytes(11 * MIB))
    faults.always("internal", "PUT", "partNumber=2")
    assert not storage.link("a", "b")
    faults.always("")
    assert not storage.exists("b")
    assert storage.abort_uploads(0.0) == 0


def test_a_listing_goes_over_pages(s3_storage):
    for number in range(5):
        s3_storage.put(f"many/{number}", b"")
    assert len(s3_storage.walk("many")) == 5


def test_pages_of_uploads_are_followed():
    page = b"""<ListMultipartUploadsResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
      <IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>
      <NextUploadIdMarker>u</NextUploadIdMarker>
      <Upload><Key>a/b</Key><UploadId>1</UploadId>
      <Initiated>2026-01-02T03:04:05.000Z</Initiated></Upload></ListMultipartUploadsResult>"""
    uploads, marker = s3_multipart.parsed(page)
    assert [(each.key, each.upload_id) for each in uploads] == [("a/b", "1")]
    assert marker == {"key-marker": "k", "upload-id-marker": "u"}


def test_the_url_names_bucket_and_prefix(s3_settings):
    storage = open_storage(f"s3://{BUCKET}/models/alpha/", s3_settings)
    assert (storage.bucket, storage.prefix) == (BUCKET, "models/alpha")
    assert storage.url == f"s3://{BUCKET}/models/alpha"


@pytest.mark.parametrize("where", ["", "s3://", "s3:///x", "s3://b/../x", "gs://b/x", "s3://b?x=1"])
def test_unknown_kinds_of_storage_are_refused(where, s3_settings):
    with pytest.raises(InvalidArgument):
        open_storage(where, s3_settings)


def test_short_response_is_noticed(s3_storage):
    s3_storage.put("a", b"12345")
    reader = s3_storage.open("a")
    reader.size_bytes = 10
    with pytest.raises(Corrupt):
        reader.read_into(0, [memoryview(bytearray(10))])
