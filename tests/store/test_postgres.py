"""A store in PostgreSQL: one leader writes, a deposed one cannot, and the server may fail."""

import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from strata.errors import NotFound, NotLeading, SettingError, Unavailable
from strata.store.postgres import PostgresReader, PostgresStore
from tests.sdk.harness import until
from tests.store.kinds import CODEC, batch, events, fill

LEASE_S = 2.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def url(postgres):
    return postgres.empty()


def opened(url, holder="", lease_s=60.0):
    return PostgresStore(url, CODEC, holder=holder, lease_s=lease_s)


def taken_over(url):
    """A store that was opened when the leader was gone."""

    def attempt():
        with suppress(NotLeading):
            return opened(url, "second")

    return until(attempt, what="the takeover")


LEADER = """
import sys
from strata.store.postgres import PostgresStore
from tests.store.kinds import CODEC, events
url, lease_s = sys.argv[1:]
with PostgresStore(url, CODEC, holder="the other", lease_s=float(lease_s)) as store:
    print("leads", flush=True)
    for line in sys.stdin:
        try:
            store.append(events(store.position, store.position + 1), incarnation=1,
                         expected=store.position)
            print(store.position, flush=True)
        except Exception as error:
            print(type(error).__name__, error, flush=True)
"""


class OtherLeader:
    """A leader in a process of its own."""

    def __init__(self, url, lease_s):
        self.process = subprocess.Popen(
            [sys.executable, "-c", LEADER, url, str(lease_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.says() == "leads"

    def says(self):
        return self.process.stdout.readline().strip()

    def append(self):
        """Append a fact; returns the new position, or the error."""
        self.process.stdin.write("append\n")
        self.process.stdin.flush()
        return self.says()

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other(url):
    started = []

    def start(lease_s=60.0):
        started.append(OtherLeader(url, lease_s))
        return started[-1]

    yield start
    for each in started:
        each.end()


class TestLeading:
    def test_second_writer_is_refused_while_the_first_leads(self, url):
        with opened(url, "first") as first:
            with pytest.raises(NotLeading, match="first leads"):
                opened(url, "second")
            first.append(events(0, 1), incarnation=1, expected=0)
        with opened(url, "second") as second:
            assert list(second.read()) == events(0, 1)
            assert second.term == 2

    def test_reader_says_who_leads(self, url):
        with opened(url, "first"), PostgresReader(url, CODEC) as reader:
            leader = reader.leader()
            assert (leader.term, leader.holder) == (1, "first")
            assert 0 < leader.left_s <= 60

    def test_killed_leader_is_replaced_without_waiting_for_its_lease(self, url, other):
        killed = other(lease_s=3600.0)
        assert killed.append() == "1"
        killed.end()
        store = taken_over(url)
        with store:
            assert store.position == 1

    def test_stopped_leader_is_deposed_when_its_lease_ends_and_can_write_nothing(self, url, other):
        stopped = other(lease_s=LEASE_S)
        assert stopped.append() == "1"
        stopped.process.send_signal(signal.SIGSTOP)
        second = taken_over(url)
        with second:
            second.append(events(1, 3), incarnation=2, expected=1)
            stopped.process.send_signal(signal.SIGCONT)
            assert stopped.append().startswith("NotLeading second took over")
            assert stopped.append().startswith("NotLeading")
            second.append(events(3, 4), incarnation=2, expected=3)
            assert list(second.read()) == events(0, 4)

    def test_leader_that_was_stopped_in_a_transaction_is_replaced(self, url):
        with opened(url, "first", lease_s=1.0) as first:
            first._lease._over.set()  # as SIGSTOP does, nothing is done any more
            transaction = first._transaction()
            transaction.__enter__().execute("DELETE FROM snapshots", ())
            second = taken_over(url)
            with pytest.raises(Unavailable):
                transaction.__exit__(None, None, None)
            with second:
                second.append(events(0, 1), incarnation=1, expected=0)
                assert list(second.read()) == events(0, 1)

    def test_deposed_leader_that_closes_leaves_the_lease_of_the_new_one(self, url, other):
        with opened(url, "first", lease_s=0.01) as first:
            first._open.close()  # as if its thread were stopped: the lease ends
            second = opened(url, "second")
        with second, PostgresReader(url, CODEC) as reader:
            assert reader.leader().holder == "second"
            assert reader.leader().left_s > 0


class TestServer:
    @pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
    def test_restarted_server_loses_nothing_and_keeps_the_leader(self, postgres, url, how):
        with opened(url) as store:
            fill(store, rows=8)
            position, facts = store.position, list(store.read())
            postgres.stop(how)
            try:
                with pytest.raises(Unavailable, match="is not usable"):
                    store.append(events(position, position + 1), incarnation=1, expected=position)
            finally:
                postgres.start()
            store.append(events(position, position + 1), incarnation=1, expected=position)
            assert list(store.read())[:-1] == facts
            assert store.term == 1
            assert store.verify() == []

    def test_broken_connection_is_replaced(self, postgres, url):
        with opened(url) as store, PostgresReader(url, CODEC) as reader:
            for position in range(3):
                postgres.cut()
                store.append(events(position, position + 1), incarnation=1, expected=position)
                postgres.cut()
                assert list(reader.read()) == events(0, position + 1)

    def test_commit_whose_answer_was_lost_is_found(self, postgres, url, monkeypatch):
        with opened(url) as store:
            transaction = store._db.transaction

            @contextmanager
            def cut_after_commit():
                with transaction():
                    yield
                postgres.cut()
                store._db.execute("SELECT 1")  # fails like the answer of the commit

            monkeypatch.setattr(store._db, "transaction", cut_after_commit)
            with pytest.raises(Unavailable):
                store.append(events(0, 2), incarnation=1, expected=0)
            assert store.position == 2
            assert list(store.read()) == events(0, 2)
            store.append(events(2, 3), incarnation=1, expected=2)

    def test_damaged_row_is_noticed(self, postgres, url):
        with opened(url) as store:
            store.append(events(0, 2), incarnation=1, expected=0, batches=[batch(0, 5)])
            postgres.ask("UPDATE strata.facts SET payload = set_byte(payload, 5, 1)")
            postgres.ask("UPDATE strata.batches SET first_seq = 1")
            damage = " ".join(store.verify())
        assert "row 0 of facts is damaged" in damage
        assert "row 0 of batches is damaged" in damage


class TestAddress:
    def test_password_is_not_shown(self, postgres):
        with pytest.raises(Unavailable) as refused:
            PostgresReader(f"postgresql://me:secret@127.0.0.1:{postgres.port}/none", CODEC)
        assert "secret" not in str(refused.value)

    def test_other_address_is_refused(self):
        with pytest.raises(SettingError, match="not one of PostgreSQL"):
            PostgresReader("mysql://here", CODEC)

    def test_reader_finds_no_store(self, url):
        with pytest.raises(NotFound, match="no event store"):
            PostgresReader(url, CODEC)

    def test_store_of_a_later_release_is_refused(self, postgres, url):
        with opened(url):
            pass
        postgres.ask("UPDATE strata.format SET version = 99")
        with pytest.raises(Exception, match="has format 99, this release reads"):
            opened(url)
