"""Followers get every new matching line once and in order; a slow one loses lines and gets their
number."""

import asyncio
import threading

import pytest

from strata.coordinator.logs.log_entries import LogEntry, LogLine, Skipped
from strata.coordinator.logs.log_query import LogQuery
from strata.errors import InvalidArgument


async def first(iterator, count):
    """The next items of a follower, which is then closed."""
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


def test_follower_receives_new_lines(store):
    async def scenario():
        reader = asyncio.create_task(first(store.follow(), 3))
        await until_followed(store)
        store.extend([LogLine("info", "a"), LogLine("info", "b")])
        store.append(LogLine("info", "c"))
        return await reader

    store.append(LogLine("info", "before"))
    assert texts(asyncio.run(scenario())) == ["a", "b", "c"]
    assert store.followers == 0


def test_follower_receives_only_matching_lines(store):
    async def scenario():
        query = LogQuery(level="warn", worker_id="w1", search="NaN")
        reader = asyncio.create_task(first(store.follow(query), 1))
        await until_followed(store)
        store.append(LogLine("info", "loss is nan", worker_id="w1"))
        store.append(LogLine("error", "loss is nan", worker_id="w2"))
        store.append(LogLine("error", "all is well", worker_id="w1"))
        store.append(LogLine("error", "loss is nan, really", worker_id="w1"))
        return await reader

    assert texts(asyncio.run(scenario())) == ["loss is nan, really"]


def test_backlog_and_new_lines_have_no_gap_or_overlap(store):
    writing, enough = threading.Event(), threading.Event()

    def write():
        for i in range(10**9):
            store.append(LogLine("info", str(i)))
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


def test_follow_continues_after_a_line(store):
    store.extend(LogLine("info", str(i)) for i in range(20))
    (known,) = store.recent(LogQuery(search="12")).entries

    async def scenario():
        return await first(store.follow(LogQuery(after=known.id), backlog=1000), 7)

    assert texts(asyncio.run(scenario())) == [str(i) for i in range(13, 20)]


def test_slow_follower_gets_the_number_of_skipped_lines(store):
    async def scenario():
        slow = store.follow(LogQuery(worker_id="w1"), buffer=100)
        reader = asyncio.create_task(anext(slow))
        await until_followed(store)
        store.append(LogLine("info", "first", worker_id="w1"))
        assert (await reader).message == "first"
        for i in range(1000):
            store.append(LogLine("info", str(i), worker_id="w1"))
            store.append(LogLine("info", "of no interest", worker_id="w2"))
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
        store.append(LogLine("info", "last"))
        await asyncio.to_thread(store.close)
        async with asyncio.timeout(20):
            return await reader, [item async for item in store.follow()]

    assert asyncio.run(scenario()) == (["last"], [])


def test_follower_with_a_closed_event_loop_does_not_affect_others(store):
    async def leave():
        iterator = store.follow()
        waiting = asyncio.create_task(anext(iterator))
        await until_followed(store)
        waiting.cancel()
        return iterator

    left = asyncio.run(leave())
    store.append(LogLine("info", "still written"))
    assert store.recent().entries[0].message == "still written"
    del left


@pytest.mark.parametrize("bad", ["(", "[a"])
def test_invalid_query_is_refused_before_following(store, bad):
    async def scenario():
        await anext(store.follow(LogQuery(search=bad, regex=True)))

    with pytest.raises(InvalidArgument, match="not a valid regular expression"):
        asyncio.run(scenario())
    assert store.followers == 0
