"""Guards the way of a result from worker to worker, over real sockets: announced until it is heard,
fetched from whoever has it, verified, and let go of when the round is over."""

import contextlib

import pytest

from strata.core.events import event_id
from strata.core.worker_facts import CODEC
from strata.sdk import collecting
from strata.sdk.announcing import MAX_REFUSALS_RECORDED, Announcer
from strata.sdk.blobs import Blob, Blobs
from strata.sdk.collecting import Collector, checksum
from strata.sdk.events import Recorder
from strata.sdk.exchange import LinkBroken
from strata.sdk.gossip import Announcement, message_id
from strata.sdk.peers import Circle
from strata.store.batches import unpack
from tests.sdk.harness import free_port, until

TOKEN = "t" * 64
STEP = 3


class Node:
    """A worker, as far as results go."""

    def __init__(self, name, folder) -> None:
        self.name = name
        self.recorder = Recorder()
        self.recorder.begin(folder, name, 1)
        self.blobs = Blobs(self.recorder)
        self.blobs.token = TOKEN
        self.address = self.blobs.address(("127.0.0.1", 1))
        self.collector = Collector(self.blobs, self.recorder)
        self.announcer = Announcer(self.blobs, self.recorder, self.collector.fetch_soon)
        self._events = []

    def open(self, addresses, generation=1) -> None:
        circle = Circle(generation, self.name, TOKEN, addresses)
        self.collector.open(circle)
        self.announcer.open(circle, STEP)

    def finish_part(self, data) -> None:
        self.announcer.begin(STEP)
        self.collector.put(announced(self.name, data), data)
        self.announcer.announce(announced(self.name, data))

    def facts(self, *kinds):
        """What it has recorded so far."""
        self.recorder.collect()
        for batch in iter(self.recorder.to_send, None):
            self._events += unpack(CODEC, batch)
        return [event.body for event in self._events if event.kind in kinds]

    def close(self) -> None:
        self.announcer.hush()
        self.blobs.close()
        self.recorder.close()


def announced(author, data, generation=1, step=STEP):
    message = message_id(generation, step, author)
    return Announcement(message, generation, step, author, checksum(data), len(data))


@pytest.fixture
def nodes(tmp_path):
    with contextlib.ExitStack() as stack:

        def start(names):
            found = [Node(name, tmp_path) for name in names]
            for node in found:
                stack.callback(node.close)
            return found

        yield start


def never() -> bool:
    return False


def test_every_result_reaches_everyone_once(nodes):
    crew = nodes([f"worker-{n}" for n in range(7)])
    addresses = {node.name: node.address for node in crew}
    for node in crew:
        node.open(addresses)
    for node in crew:
        node.finish_part(node.name.encode() * 1_000)
    for node in crew:
        results = node.collector.wait(STEP, never)
        assert {name: bytes(data) for name, data in results.items()} == {
            name: name.encode() * 1_000 for name in addresses
        }
        heard = [fact.message for fact in node.facts("MessageReceived")]
        assert sorted(heard) == sorted(
            message_id(1, STEP, name) for name in addresses if name != node.name
        )


def test_what_is_heard_names_the_event_that_told_it(nodes):
    first, second = nodes("ab")
    addresses = {"a": first.address, "b": second.address}
    for node in (first, second):
        node.open(addresses)
    first.finish_part(b"x")
    until(lambda: second.facts("MessageReceived"), what="the news")
    first.facts()
    sent = [event for event in first._events if event.kind == "MessageSent"]
    (heard,) = [event for event in second._events if event.kind == "MessageReceived"]
    assert heard.cause == (event_id("a", 1, sent[-1].seq),)


def test_nobody_names_an_event_of_somebody_else(nodes):
    (node,) = nodes("a")
    assert node.announcer.take(b"{}", "b", True, "c.1.5").startswith("it is malformed")
    node.facts()
    (refused,) = [event for event in node._events if event.kind == "MessageRejected"]
    assert refused.cause == ()


def test_whoever_cannot_be_reached_is_told_again_when_it_is_back(nodes):
    first, second = nodes("ab")
    take, second.blobs.on_message = second.blobs.on_message, broken
    addresses = {"a": first.address, "b": second.address}
    first.open(addresses)
    second.open(addresses)
    first.finish_part(b"x")
    until(lambda: len(first.facts("MessageSent")) >= 2, what="a second try")
    second.blobs.on_message = take
    second.finish_part(b"y")
    assert set(second.collector.wait(STEP, never)) == {"a", "b"}
    tries = [fact.attempt for fact in first.facts("MessageSent") if fact.to == ["b"]]
    assert tries == list(range(1, len(tries) + 1))
    until(lambda: first.facts("ConnectionChanged")[-1].path == "direct", what="the way back")
    assert [fact.path for fact in first.facts("ConnectionChanged")] == ["disconnected", "direct"]


def broken(*_):
    raise ConnectionAbortedError


def test_what_its_author_cannot_give_comes_from_the_neighbour_that_has_it(nodes):
    holder, asking = nodes("bc")
    addresses = {"a": f"127.0.0.1:{free_port()}", "b": holder.address, "c": asking.address}
    holder.open(addresses)
    asking.open(addresses)
    said = announced("a", b"result")
    holder.collector.put(said, b"result")
    asking.collector.fetch_soon(said, "b")
    until(lambda: "a" in asking.collector._results.get(STEP, {}), what="the result")
    ended = asking.facts("BlobDownloadCompleted")
    assert [(fact.source, fact.ok) for fact in ended] == [("a", False), ("b", True)]
    assert "cannot be reached" in ended[0].error
    assert [fact.attempt for fact in asking.facts("BlobDownloadStarted")] == [1, 2]
    until(lambda: holder.facts("BlobUploadCompleted"), what="the end of the upload")


def test_what_is_not_what_was_announced_is_not_taken(nodes):
    author, holder, asking = nodes("abc")
    addresses = {"a": author.address, "b": holder.address, "c": asking.address}
    for node in (author, holder, asking):
        node.open(addresses)
    said = announced("a", b"result")
    name = f"update/1/{STEP}/a"
    author.blobs.offer(name, Blob("wrong", "update", [memoryview(b"rotten")]))
    holder.collector.put(said, b"result")
    asking.collector.fetch_soon(said, "b")
    until(lambda: "a" in asking.collector._results.get(STEP, {}), what="the result")
    assert bytes(asking.collector._results[STEP]["a"]) == b"result"
    assert "not what was announced" in asking.facts("BlobDownloadCompleted")[0].error
    assert not author.facts("BlobUploadCompleted")[0].ok


def test_a_result_that_nobody_gives_ends_the_exchange(nodes, monkeypatch):
    monkeypatch.setattr(collecting, "TRIES", 2)
    (asking,) = nodes("c")
    asking.open({"a": f"127.0.0.1:{free_port()}", "c": asking.address})
    asking.collector.fetch_soon(announced("a", b"result"), "a")
    with pytest.raises(LinkBroken, match="update-1-3-a could not be had from a"):
        asking.collector.wait(STEP, never)


def test_nobody_waits_for_results_of_a_generation_that_is_over(nodes):
    (waiting,) = nodes("a")
    waiting.open({"a": waiting.address, "b": f"127.0.0.1:{free_port()}"})
    with pytest.raises(LinkBroken, match="over"):
        waiting.collector.wait(STEP, lambda: True)


def test_a_finished_round_is_let_go_of(nodes):
    (node,) = nodes("a")
    node.open({"a": node.address})
    node.finish_part(b"x")
    assert node.collector.wait(STEP, never)
    node.collector.finish(STEP)
    assert node.collector._results == {}
    assert node.blobs.readers(f"update/1/{STEP}/a") == set()
    assert f"update/1/{STEP}/a" not in node.blobs._blobs


def test_a_stranger_cannot_fill_the_record(nodes):
    (node,) = nodes("a")
    node.open({"a": node.address})
    for _ in range(MAX_REFUSALS_RECORDED + 50):
        assert "malformed" in node.announcer.take(b"{", "mallory", False)
    assert len(node.facts("MessageRejected")) == MAX_REFUSALS_RECORDED


def test_before_the_first_generation_nothing_is_taken(nodes):
    (node,) = nodes("a")
    assert node.announcer.take(b"{}", "b", True).startswith("it is malformed")
    message = b'{"message":"m","generation":1,"step":3,"author":"b","blob":"0","size_bytes":1}'
    assert node.announcer.take(message, "b", True) == "this worker is in no generation yet"


def test_neighbours_that_come_and_go_are_recorded(nodes):
    (node,) = nodes("a")
    node.open({"a": "1:1", "b": "1:1"})
    node.open({"a": "1:1", "c": "1:1"}, generation=2)
    node.open({"a": "1:1", "c": "1:1"}, generation=3)
    changed = node.facts("NeighborsChanged")
    assert [(each.added, each.removed) for each in changed] == [(["b"], []), (["c"], ["b"])]
