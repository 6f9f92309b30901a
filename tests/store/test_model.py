"""The SQLite store behaves like the store in memory, over any sequence of calls."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from strata.core.events import COORDINATOR
from strata.errors import StrataError
from strata.store.event_batches import pack, unpack
from strata.store.event_store import FOREVER_NS, NEVER_NS, Snapshot, Window
from strata.store.memory_store import MemoryStore
from strata.store.sql import segment_plan
from strata.store.sqlite import SqliteStore
from tests.store.kinds import CODEC, contents, event

WALLS = st.integers(0, 60)
MOMENTS = st.none() | st.integers(-5, 70)


def outcome(call):
    """What a call returns, or the class of the error it raises."""
    try:
        found = call()
        return list(found) if hasattr(found, "__next__") else found
    except StrataError as error:
        return type(error)


class Stores(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.model = MemoryStore(CODEC)
        self.real = SqliteStore(self.folder / "log.db", CODEC)

    def teardown(self):
        self.real.close()
        shutil.rmtree(self.folder)

    def both(self, call):
        expected, found = outcome(lambda: call(self.model)), outcome(lambda: call(self.real))
        assert expected == found
        return found

    @rule(
        walls=st.lists(WALLS, max_size=4),
        off=st.sampled_from([0, 0, 0, 0, 1, -1]),
        sent=st.lists(
            st.tuples(st.sampled_from(["w0", "w1"]), st.integers(1, 2), st.integers(0, 12), WALLS),
            max_size=3,
        ),
        length=st.integers(1, 5),
    )
    def append(self, walls, off, sent, length):
        position = self.model.position + off
        facts = [event(position + n, wall) for n, wall in enumerate(walls)]
        batches = [
            pack(CODEC, node, number, [event(first + n, wall + n) for n in range(length)])
            for node, number, first, wall in sent
        ]
        self.both(
            lambda store: store.append(facts, incarnation=1, expected=position, batches=batches)
        )

    @rule(schema=st.sampled_from(["s1", "s2"]), back=st.integers(0, 10))
    def save_snapshot(self, schema, back):
        position = max(self.model.position - back, 0)
        snapshot = Snapshot(position, 7, schema, bytes(position))
        self.both(lambda store: store.save_snapshot(snapshot))

    @rule(
        node=st.sampled_from(["w0", "w1"]),
        number=st.integers(1, 2),
        start=st.sampled_from([0, 0, 3, 8]),
        stop=st.integers(0, 20),
    )
    def release(self, node, number, start, stop):
        self.both(lambda store: store.release(node, number, stop, start))

    @rule(back=st.integers(0, 10))
    def compact(self, back):
        segment_plan.SEGMENT_FACTS, usual = 5, segment_plan.SEGMENT_FACTS
        try:
            while self.real.compact(self.real.position - back):
                pass
        finally:
            segment_plan.SEGMENT_FACTS = usual

    @rule()
    def reopen(self):
        self.real.close()
        self.real = SqliteStore(self.folder / "log.db", CODEC)

    @rule(start=st.integers(0, 40), length=st.none() | st.integers(0, 20))
    def read(self, start, length):
        stop = None if length is None else start + length
        self.both(lambda store: store.read(start, stop))

    @rule(
        node=st.sampled_from([None, COORDINATOR, "w0", "w1"]),
        kinds=st.frozensets(st.sampled_from(["Started", "Stepped"])),
        since=MOMENTS,
        until=MOMENTS,
        limit=st.sampled_from([1, 5, 1_000]),
    )
    def query(self, node, kinds, since, until, limit):
        since, until = NEVER_NS if since is None else since, FOREVER_NS if until is None else until
        wanted = Window(since, until, node, kinds)
        self.both(lambda store: store.query(wanted, limit))
        self.both(lambda store: sorted(self.unpacked(store, wanted), key=repr))

    def unpacked(self, store, wanted):
        """The events of the batches that touch a window; how facts are grouped may differ."""
        for batch in store.batches(wanted):
            for each in filter(wanted.holds, unpack(CODEC, batch)):
                yield batch.node, batch.incarnation, each

    @rule(moment=st.integers(-5, 70))
    def position_at(self, moment):
        self.both(lambda store: store.position_at(moment))

    @rule(at=MOMENTS, schema=st.sampled_from(["s1", "s2"]))
    def load_snapshot(self, at, schema):
        self.both(lambda store: store.load_snapshot(at, schema))

    @invariant()
    def same_streams(self):
        assert self.real.position == self.model.position
        self.both(lambda store: store.sizes())
        for stream in self.both(lambda store: store.streams()):
            self.both(lambda store, stream=stream: store.last_seq(*stream))
            self.both(lambda store, stream=stream: store.gaps(*stream))

    @invariant()
    def nothing_is_damaged(self):
        assert self.real.verify() == []


QUICK = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStores = Stores.TestCase
TestStores.settings = QUICK


@pytest.mark.slow
class TestStoresForLonger(Stores.TestCase):
    settings = settings(QUICK, max_examples=300, stateful_step_count=50)


def test_contents_survive_reopening(tmp_path):
    facts = [event(seq) for seq in range(100)]
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        for seq in range(0, 100, 7):
            store.append(facts[seq : seq + 7], incarnation=1, expected=seq)
        before = contents(store)
    with SqliteStore(tmp_path / "log.db", CODEC) as store:
        assert contents(store) == before
        assert before[0] == facts
