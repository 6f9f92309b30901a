"""Guards that a follower sees every new matching line once and in order, and that one that is slow
costs nothing but its own lines, of which it is told the number."""

import asyncio
import threading

import pytest

from strata.coordinator.logs import Line, LogEntry, Query, Skipped
from strata.errors import InvalidArgument


async def first(iterator, count):
    """The next items of a follower, which is ended then."""
    items = []
    async with asyncio.timeout(20):
        async for item in iterator:
            items.append(item)
            if len(items) == count:
                break
    await iterator.aclose()
    return items


def texts(items):
    return [item.message if isinstance(item, LogEntry) else item for item in items]


async def until_followed(store, count=1):
    """Waits until that many followers are listening."""
    async with asyncio.timeout(20):
        while store.followers != count:
            await asyncio.sleep(0.001)


def test_new_lines_arrive_by_themselves(store):
    async def scenario():
        reader = asyncio.create_task(first(store.follow(), 3))
        await until_followed(store)
        store.extend([Line("info", "a"), Line("info", "b")])
        store.append(Line("info", "c"))
        return await reader

    store.append(Line("info", "before"))
    assert texts(asyncio.run(scenario())) == ["a", "b", "c"]
    assert store.followers == 0


def test_only_what_matches_arrives(store):
    async def scenario():
        query = Query(level="warn", worker_id="w1", search="NaN")
        reader = asyncio.create_task(first(store.follow(query), 1))
        await until_followed(store)
        store.append(Line("info", "loss is nan", worker_id="w1"))
        store.append(Line("error", "loss is nan", worker_id="w2"))
        store.append(Line("error", "all is well", worker_id="w1"))
        store.append(Line("error", "loss is nan, really", worker_id="w1"))
        return await reader

    assert texts(asyncio.run(scenario())) == ["loss is nan, really"]


def test_a_backlog_joins_the_new_lines_without_gap_or_overlap(store):
    writing, enough = threading.Event(), threading.Event()

    def write():
        for i in range(10**9):
            store.append(Line("info", str(i)))
            if i % 100 == 99:
                store.flush()
            if i == 500:
                writing.set()
            if enough.is_set():
                return

    async def scenario():
        writer = threading.Thread(target=write)
        writer.start()
        await asyncio.to_thread(writing.wait)
        items = await first(store.follow(backlog=50, buffer=10**6), 5000)
        enough.set()
        await asyncio.to_thread(writer.join)
        return items

    numbers = [int(text) for text in texts(asyncio.run(scenario()))]
    assert numbers == list(range(numbers[0], numbers[0] + 5000))


def test_following_goes_on_after_a_line(store):
    store.extend(Line("info", str(i)) for i in range(20))
    (known,) = store.recent(Query(search="12")).entries

    async def scenario():
        return await first(store.follow(Query(after=known.id), backlog=1000), 7)

    assert texts(asyncio.run(scenario())) == [str(i) for i in range(13, 20)]


def test_a_slow_reader_skips_and_is_told_how_many(store):
    async def scenario():
        slow = store.follow(Query(worker_id="w1"), buffer=100)
        reader = asyncio.create_task(anext(slow))
        await until_followed(store)
        store.append(Line("info", "first", worker_id="w1"))
        assert (await reader).message == "first"
        for i in range(1000):
            store.append(Line("info", str(i), worker_id="w1"))
            store.append(Line("info", "of no interest", worker_id="w2"))
        store.flush()
        items = [await anext(slow) for _ in range(101)]
        await slow.aclose()
        return items

    items = asyncio.run(scenario())
    assert items[0] == Skipped(900)
    assert texts(items[1:]) == [str(i) for i in range(900, 1000)]


def test_closing_the_log_ends_its_followers(store):
    async def scenario():
        async def all_of_it():
            return [item.message async for item in store.follow()]

        reader = asyncio.create_task(all_of_it())
        await until_followed(store)
        store.append(Line("info", "last"))
        await asyncio.to_thread(store.close)
        async with asyncio.timeout(20):
            return await reader, [item async for item in store.follow()]

    assert asyncio.run(scenario()) == (["last"], [])


def test_a_follower_whose_loop_is_gone_harms_nobody(store):
    async def leave():
        iterator = store.follow()
        waiting = asyncio.create_task(anext(iterator))
        await until_followed(store)
        waiting.cancel()
        return iterator

    left = asyncio.run(leave())
    store.append(Line("info", "still written"))
    assert store.recent().entries[0].message == "still written"
    del left


@pytest.mark.parametrize("bad", ["(", "[a"])
def test_a_bad_query_is_refused_before_anything_is_followed(store, bad):
    async def scenario():
        await anext(store.follow(Query(search=bad, regex=True)))

    with pytest.raises(InvalidArgument, match="not a regular expression"):
        asyncio.run(scenario())
    assert store.followers == 0
