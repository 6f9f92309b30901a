"""Guards the contract of every object storage, on a folder and on a real S3 server."""

import threading

import pytest

from strata.errors import AlreadyExists, Corrupt, InvalidArgument, NotFound
from strata.storage.backend import LinkingStorage, StorageBackend

MIB = 1024 * 1024


def pattern(size: int) -> bytes:
    return (bytes(range(251)) * (size // 251 + 1))[:size]


def names(storage, folder=""):
    return [found.name for found in storage.walk(folder)]


def test_it_is_a_storage_backend(storage):
    assert isinstance(storage, StorageBackend)


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 70_001])
def test_put_object_is_returned_by_get(storage, size):
    storage.put("a/b.bin", pattern(size))
    assert storage.get("a/b.bin") == pattern(size)
    assert storage.head("a/b.bin").size_bytes == size


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_put(storage, kind):
    storage.put("a", kind(b"some bytes"))
    assert storage.get("a") == b"some bytes"


def test_a_second_put_replaces(storage):
    storage.put("a", b"old and longer")
    storage.put("a", b"new")
    assert storage.get("a") == b"new"


@pytest.mark.parametrize(
    "sizes",
    [[], [0], [5], [4096, 10], [1, 4096, 3], [20 * MIB + 7, 3], [4096, 16 * MIB, 16 * MIB, 99]],
)
def test_a_stream_is_stored_whole(storage, sizes):
    chunks = [pattern(size) for size in sizes]
    assert storage.put_stream("big", iter(chunks)) == sum(sizes)
    assert storage.get("big") == b"".join(chunks)


def test_object_remains_under_its_second_name(storage):
    assert isinstance(storage, LinkingStorage)
    storage.put("a/b", b"some bytes")
    assert storage.link("a/b", "c/d")
    storage.delete("a/b")
    assert storage.get("c/d") == b"some bytes"
    assert not storage.link("a/b", "e"), "it is gone"
    assert not storage.exists("e")


def test_a_stream_that_fails_leaves_nothing(storage):
    def chunks():
        yield pattern(20 * MIB)
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError, match="the source broke"):
        storage.put_stream("big", chunks())
    assert names(storage) == []
    assert storage.abort_uploads(older_than_s=0.0) == 0


def test_a_failed_stream_keeps_what_was_there(storage):
    def chunks():
        yield b"half"
        raise RuntimeError("the source broke")

    storage.put("a", b"before")
    with pytest.raises(RuntimeError):
        storage.put_stream("a", chunks())
    assert storage.get("a") == b"before"


def test_recycling_gives_the_new_object_and_takes_the_old(storage):
    storage.put_stream("old", [pattern(3 * MIB)])
    storage.put_stream("new", [pattern(2 * MIB + 5)], recycle="old")
    assert storage.get("new") == pattern(2 * MIB + 5)
    assert names(storage) == ["new"]


def test_recycling_a_missing_object_is_a_plain_put(storage):
    storage.put_stream("new", [b"x"], recycle="nothing")
    assert storage.get("new") == b"x"


def test_create_if_absent_is_won_once(storage):
    storage.put("a", b"first", if_absent=True)
    with pytest.raises(AlreadyExists):
        storage.put("a", b"second", if_absent=True)
    assert storage.get("a") == b"first"


def test_exactly_one_of_many_creators_wins(storage):
    start = threading.Barrier(8)
    won = []

    def create(number: int) -> None:
        start.wait()
        try:
            storage.put("contested", b"%d" % number, if_absent=True)
            won.append(number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [b"%d" % number for number in won] == [storage.get("contested")]


def test_ranges_are_read_into_the_callers_buffers(storage):
    storage.put("a", pattern(10_000))
    first, second = bytearray(100), bytearray(50)
    with storage.open("a") as reader:
        assert reader.size_bytes == 10_000
        reader.read_into(1_000, [memoryview(first), memoryview(bytearray()), memoryview(second)])
    assert first + second == pattern(10_000)[1_000:1_150]


def test_a_parallel_download_fills_the_buffer(storage):
    storage.put_stream("a", [pattern(40 * MIB)])
    buffer = bytearray(35 * MIB)
    storage.download("a", memoryview(buffer), offset=MIB + 3)
    assert buffer == pattern(40 * MIB)[MIB + 3 : 36 * MIB + 3]


def test_reading_past_the_end_raises_instead_of_padding(storage):
    storage.put("a", b"12345")
    with storage.open("a") as reader, pytest.raises(Corrupt, match="ends at byte 5"):
        reader.read_into(3, [memoryview(bytearray(10))])
    with pytest.raises(Corrupt, match="5 bytes, but 6"):
        storage.download("a", memoryview(bytearray(6)))


@pytest.mark.parametrize("method", ["get", "open", "head"])
def test_missing_object_is_not_found(storage, method):
    storage.put("folder/a", b"")
    for missing in ("nothing", "folder/nothing"):
        with pytest.raises(NotFound):
            getattr(storage, method)(missing)
        assert not storage.exists(missing)
    assert storage.exists("folder/a")


def test_listing_shows_one_level_and_walking_shows_all(storage):
    for name in ("b", "a", "x/1", "x/y/2", "z/3"):
        storage.put(name, name.encode())
    top = storage.list()
    assert ([found.name for found in top.objects], top.folders) == (["a", "b"], ["x", "z"])
    below = storage.list("x")
    assert ([found.name for found in below.objects], below.folders) == (["x/1"], ["x/y"])
    assert names(storage) == ["a", "b", "x/1", "x/y/2", "z/3"]
    assert names(storage, "x") == ["x/1", "x/y/2"]
    assert storage.list("nothing").objects == []


def test_listed_objects_carry_size_and_age(storage):
    storage.put("a", b"12345")
    (found,) = storage.list().objects
    assert found.size_bytes == 5
    assert found.modified_s == pytest.approx(storage.head("a").modified_s, abs=1.0)


def test_delete_ignores_missing_objects(storage):
    storage.put("a", b"")
    storage.delete("a")
    storage.delete("a")
    storage.delete("nothing/at/all")
    assert names(storage) == []


def test_a_folder_is_deleted_with_everything_below_and_nothing_beside(storage):
    for name in ("x/1", "x/y/2", "xy/3", "x.json"):
        storage.put(name, b"")
    storage.delete_folder("x")
    storage.delete_folder("nothing")
    assert names(storage) == ["x.json", "xy/3"]


@pytest.mark.parametrize(
    "name",
    ["", "/a", "../a", "a/../../b", "a//b", "./a", "a/", "a\\b", "a\nb", "a\0b", "x" * 1_000],
)
def test_names_that_leave_the_root_or_break_tools_are_refused(storage, name):
    for act in (
        lambda: storage.put(name, b""),
        lambda: storage.put_stream(name, []),
        lambda: storage.get(name),
        lambda: storage.open(name),
        lambda: storage.delete(name),
    ):
        with pytest.raises(InvalidArgument):
            act()


@pytest.mark.parametrize("name", ["a b", "ä/ö", "a+b&c=d", "100%", "a#b?c", "~x", ".hid", "a:b*"])
def test_odd_names_work(storage, name):
    storage.put(name, b"odd")
    assert storage.get(name) == b"odd"
    assert names(storage) == [name]
    storage.delete(name)
    assert names(storage) == []
