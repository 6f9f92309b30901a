"""Guards the streaming writer: complete objects or none, bounded memory, reported errors."""

import threading

import pytest

from strata.checkpoint.manager import CheckpointManager
from strata.checkpoint.write import part_writer
from strata.checkpoint.write.multipart_writer import BLOCK_BYTES, AsyncCheckpointWriter
from strata.errors import InvalidArgument, NotAllowedNow, Unavailable
from strata.storage.folder import LocalStorage
from strata.storage.s3 import S3Storage
from tests.storage.server import BUCKET

MIB = 1024 * 1024


@pytest.mark.parametrize("sizes", [[], [0], [1, 2, 3], [5 * MIB] * 9, [MIB - 1, 40 * MIB + 3, 7]])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_written_bytes_are_stored(storage, sizes, kind):
    chunks = [kind(bytes([index % 251]) * size) for index, size in enumerate(sizes)]
    with AsyncCheckpointWriter(storage, "a/b.bin") as writer:
        for chunk in chunks:
            assert writer.write(chunk) == len(chunk)
    assert storage.get("a/b.bin") == b"".join(chunks)
    assert writer.close() == writer.written_bytes == sum(sizes)


def test_writer_accepts_a_path(tmp_path):
    with AsyncCheckpointWriter(tmp_path, "a") as writer:
        writer.write(b"x")
    assert LocalStorage(tmp_path).get("a") == b"x"


def test_object_is_invisible_before_close(storage):
    writer = AsyncCheckpointWriter(storage, "a")
    writer.write(bytes(BLOCK_BYTES + 1))
    assert not storage.exists("a")
    writer.close()
    assert storage.exists("a")


def test_a_caller_may_reuse_its_buffer(storage):
    buffer = bytearray(3 * MIB)
    with AsyncCheckpointWriter(storage, "a") as writer:
        for value in range(8):
            buffer[:] = bytes([value]) * len(buffer)
            writer.write(buffer)
    assert storage.get("a") == b"".join(bytes([value]) * 3 * MIB for value in range(8))


def test_failing_caller_leaves_no_object(storage):
    def fail():
        with AsyncCheckpointWriter(storage, "a") as writer:
            writer.write(bytes(40 * MIB))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert storage.walk() == []


def test_aborted_writer_refuses_writes(storage):
    writer = AsyncCheckpointWriter(storage, "a")
    writer.write(b"x")
    writer.abort()
    writer.abort()
    with pytest.raises(NotAllowedNow):
        writer.write(b"y")
    assert storage.walk() == []


class Slow(LocalStorage):
    """A storage that takes one chunk, waits for an event, then fails if `fail` is set."""

    def __init__(self, root, failure=None):
        super().__init__(root)
        self.go, self.failure = threading.Event(), failure

    def put_stream(self, name, chunks, *, size_bytes=None, recycle=None):
        def slowly():
            for chunk in chunks:
                self.go.wait(30)
                if self.failure is not None:
                    raise self.failure
                yield chunk

        return super().put_stream(name, slowly(), size_bytes=size_bytes, recycle=recycle)


def test_slow_storage_blocks_the_caller(tmp_path):
    storage = Slow(tmp_path)
    writer = AsyncCheckpointWriter(storage, "a", depth=2)
    wrote = []

    def write():
        for index in range(6):
            writer.write(bytes(BLOCK_BYTES))
            wrote.append(index)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join(0.3)
    assert len(wrote) <= 3, "one taken by the storage, two waiting"
    storage.go.set()
    thread.join()
    assert writer.close() == 6 * BLOCK_BYTES


@pytest.mark.parametrize("depth", [1, 4])
def test_error_is_raised_by_the_next_call_and_by_close(tmp_path, depth):
    storage = Slow(tmp_path, Unavailable("broken"))
    storage.go.set()
    writer = AsyncCheckpointWriter(storage, "a", depth=depth)

    def write_on():
        for _ in range(100):
            writer.write(bytes(BLOCK_BYTES))

    with pytest.raises(Unavailable, match="broken"):
        write_on()
    with pytest.raises(Unavailable, match="broken"):
        writer.close()
    assert storage.walk() == []


def test_error_at_the_end_is_raised_by_close(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    writer = AsyncCheckpointWriter(tmp_path, "a")
    writer.write(b"x")
    monkeypatch.setattr("strata.storage.direct_io.os.fsync", refuse)
    with pytest.raises(Unavailable, match="disk is full"):
        writer.close()


def test_a_name_that_leaves_the_root_is_refused(tmp_path):
    with pytest.raises(InvalidArgument):
        AsyncCheckpointWriter(tmp_path, "../a")


def test_url_is_opened_with_settings_from_the_environment(s3_settings, monkeypatch):
    names = {
        "aws_access_key_id": "AWS_ACCESS_KEY_ID",
        "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
        "aws_endpoint_url": "AWS_ENDPOINT_URL",
        "aws_region": "AWS_REGION",
    }
    for field, name in names.items():
        monkeypatch.setenv(name, str(getattr(s3_settings, field)))
    with AsyncCheckpointWriter(f"s3://{BUCKET}/from-the-environment", "a.bin") as writer:
        writer.write(b"some bytes")
    storage = S3Storage(BUCKET, "from-the-environment", s3_settings)
    assert storage.get("a.bin") == b"some bytes"


def test_checkpoints_use_the_writer(storage, monkeypatch):
    written = []

    class Noted(AsyncCheckpointWriter):
        def write(self, data, *, copy=True):
            assert not copy, "staging memory is not copied again"
            written.append(self.name)
            return super().write(data, copy=copy)

    monkeypatch.setattr(part_writer, "AsyncCheckpointWriter", Noted)
    with CheckpointManager(storage) as manager:
        saved = manager.save({"a": bytes(40 * MIB), "b": bytearray(5)}, step=1)
        manager.wait_pending()
        assert manager.load()["a"] == bytes(40 * MIB)
    assert written == [f"{saved}/part-00000.safetensors"] * 3


def test_stored_bytes_are_counted(storage):
    writer = AsyncCheckpointWriter(storage, "a")
    for _ in range(3):
        writer.write(bytes(BLOCK_BYTES))
    assert writer.stored_bytes <= writer.written_bytes == 3 * BLOCK_BYTES
    writer.close()
    assert writer.stored_bytes == 3 * BLOCK_BYTES
