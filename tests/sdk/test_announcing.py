"""Announcer and collector over real sockets: results are announced until acknowledged, downloaded
from any member that has them, verified, and dropped when the round is over."""

import contextlib

import pytest

from strata.core.events import event_id
from strata.core.workers.worker_facts import CODEC
from strata.sdk.peers import update_collector
from strata.sdk.peers.announcer import MAX_REJECTIONS_RECORDED, Announcer
from strata.sdk.peers.blob_client import Circle
from strata.sdk.peers.blob_server import Blob, Blobs
from strata.sdk.peers.exchange import LinkBroken
from strata.sdk.peers.gossip import Announcement, message_id
from strata.sdk.peers.update_collector import Collector, checksum
from strata.sdk.record.recorder import Recorder
from strata.store.event_batches import unpack
from tests.sdk.harness import free_port, until

TOKEN = "t" * 64
STEP = 3


class Node:
    """The parts of a worker that exchange results."""

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

    def enter(self, addresses, generation=1) -> None:
        circle = Circle(generation, self.name, TOKEN, addresses)
        self.collector.enter(circle)
        self.announcer.enter(circle, STEP)

    def publish(self, data) -> None:
        self.announcer.begin_round(STEP)
        self.collector.add(announced(self.name, data), data)
        self.announcer.announce(announced(self.name, data))

    def facts(self, *kinds):
        """The facts of some kinds that it has recorded so far."""
        self.recorder.collect()
        for batch in iter(self.recorder.to_send, None):
            self._events += unpack(CODEC, batch)
        return [event.body for event in self._events if event.kind in kinds]

    def close(self) -> None:
        self.announcer.stop()
        self.blobs.close()
        self.recorder.close()


def announced(author, data, generation=1, step=STEP):
    message = message_id(generation, step, author)
    return Announcement(
        message=message,
        generation=generation,
        step=step,
        author=author,
        blob=checksum(data),
        size_bytes=len(data),
    )


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


def test_every_result_reaches_every_member_once(nodes):
    crew = nodes([f"worker-{n}" for n in range(7)])
    addresses = {node.name: node.address for node in crew}
    for node in crew:
        node.enter(addresses)
    for node in crew:
        node.publish(node.name.encode() * 1_000)
    for node in crew:
        results = node.collector.wait(STEP, never)
        assert {name: bytes(data) for name, data in results.items()} == {
            name: name.encode() * 1_000 for name in addresses
        }
        received = [fact.message for fact in node.facts("MessageReceived")]
        assert sorted(received) == sorted(
            message_id(1, STEP, name) for name in addresses if name != node.name
        )


def test_received_message_names_the_event_that_sent_it(nodes):
    first, second = nodes("ab")
    addresses = {"a": first.address, "b": second.address}
    for node in (first, second):
        node.enter(addresses)
    first.publish(b"x")
    until(lambda: second.facts("MessageReceived"), what="the message")
    first.facts()
    sent = [event for event in first._events if event.kind == "MessageSent"]
    (received,) = [event for event in second._events if event.kind == "MessageReceived"]
    assert received.cause == (event_id("a", 1, sent[-1].seq),)


def test_cause_of_another_worker_is_ignored(nodes):
    (node,) = nodes("a")
    assert node.announcer.receive(b"{}", "b", True, "c.1.5").startswith("it is malformed")
    node.facts()
    (rejected,) = [event for event in node._events if event.kind == "MessageRejected"]
    assert rejected.cause == ()


def test_unreachable_neighbor_gets_the_message_when_it_is_back(nodes):
    first, second = nodes("ab")
    receive, second.blobs.on_message = second.blobs.on_message, broken
    addresses = {"a": first.address, "b": second.address}
    first.enter(addresses)
    second.enter(addresses)
    first.publish(b"x")
    until(lambda: len(first.facts("MessageSent")) >= 2, what="a second try")
    second.blobs.on_message = receive
    second.publish(b"y")
    assert set(second.collector.wait(STEP, never)) == {"a", "b"}
    tries = [fact.attempt for fact in first.facts("MessageSent") if fact.to == ["b"]]
    assert tries == list(range(1, len(tries) + 1))
    until(
        lambda: first.facts("ConnectionChanged")[-1].path == "direct",
        what="the reconnection",
    )
    assert [fact.path for fact in first.facts("ConnectionChanged")] == ["disconnected", "direct"]


def broken(*_):
    raise ConnectionAbortedError


def test_result_of_an_unreachable_author_is_downloaded_from_a_neighbor(nodes):
    holder, asking = nodes("bc")
    addresses = {"a": f"127.0.0.1:{free_port()}", "b": holder.address, "c": asking.address}
    holder.enter(addresses)
    asking.enter(addresses)
    announcement = announced("a", b"result")
    holder.collector.add(announcement, b"result")
    asking.collector.fetch_soon(announcement, "b")
    until(lambda: "a" in asking.collector._results.get(STEP, {}), what="the result")
    ended = asking.facts("BlobDownloadCompleted")
    assert [(fact.source, fact.ok) for fact in ended] == [("a", False), ("b", True)]
    assert "cannot be reached" in ended[0].error
    assert [fact.attempt for fact in asking.facts("BlobDownloadStarted")] == [1, 2]
    until(lambda: holder.facts("BlobUploadCompleted"), what="the end of the upload")


def test_download_with_a_wrong_checksum_is_discarded(nodes):
    author, holder, asking = nodes("abc")
    addresses = {"a": author.address, "b": holder.address, "c": asking.address}
    for node in (author, holder, asking):
        node.enter(addresses)
    announcement = announced("a", b"result")
    name = f"update/1/{STEP}/a"
    author.blobs.offer(name, Blob("wrong", "update", [memoryview(b"damage")]))
    holder.collector.add(announcement, b"result")
    asking.collector.fetch_soon(announcement, "b")
    until(lambda: "a" in asking.collector._results.get(STEP, {}), what="the result")
    assert bytes(asking.collector._results[STEP]["a"]) == b"result"
    assert "wrong checksum" in asking.facts("BlobDownloadCompleted")[0].error
    assert not author.facts("BlobUploadCompleted")[0].ok


def test_result_that_no_member_provides_ends_the_exchange(nodes, monkeypatch):
    monkeypatch.setattr(update_collector, "TRIES", 2)
    (asking,) = nodes("c")
    asking.enter({"a": f"127.0.0.1:{free_port()}", "c": asking.address})
    asking.collector.fetch_soon(announced("a", b"result"), "a")
    with pytest.raises(LinkBroken, match="download of update-1-3-a from a failed"):
        asking.collector.wait(STEP, never)


def test_wait_ends_with_the_generation(nodes):
    (waiting,) = nodes("a")
    waiting.enter({"a": waiting.address, "b": f"127.0.0.1:{free_port()}"})
    with pytest.raises(LinkBroken, match="over"):
        waiting.collector.wait(STEP, lambda: True)


def test_finished_round_is_dropped(nodes):
    (node,) = nodes("a")
    node.enter({"a": node.address})
    node.publish(b"x")
    assert node.collector.wait(STEP, never)
    node.collector.finish(STEP)
    assert node.collector._results == {}
    assert node.blobs.readers(f"update/1/{STEP}/a") == set()
    assert f"update/1/{STEP}/a" not in node.blobs._blobs


def test_recorded_rejections_are_bounded(nodes):
    (node,) = nodes("a")
    node.enter({"a": node.address})
    for _ in range(MAX_REJECTIONS_RECORDED + 50):
        assert "malformed" in node.announcer.receive(b"{", "mallory", False)
    assert len(node.facts("MessageRejected")) == MAX_REJECTIONS_RECORDED


def test_message_before_the_first_generation_is_rejected(nodes):
    (node,) = nodes("a")
    assert node.announcer.receive(b"{}", "b", True).startswith("it is malformed")
    message = b'{"message":"m","generation":1,"step":3,"author":"b","blob":"0","size_bytes":1}'
    assert (
        node.announcer.receive(message, "b", True) == "this worker has not entered a generation yet"
    )


def test_changed_neighbors_are_recorded(nodes):
    (node,) = nodes("a")
    node.enter({"a": "1:1", "b": "1:1"})
    node.enter({"a": "1:1", "c": "1:1"}, generation=2)
    node.enter({"a": "1:1", "c": "1:1"}, generation=3)
    changed = node.facts("NeighborsChanged")
    assert [(each.added, each.removed) for each in changed] == [(["b"], []), (["c"], ["b"])]
