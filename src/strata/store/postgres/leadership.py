"""The right to write a store that several coordinators share: a lease with fencing.

The table `leader` has one row: the term, who leads and until when. Each new leader raises the term
by one. Every transaction of a writer locks the row and compares the term with its own: after
another coordinator took over, a deposed leader can write nothing, however late it notices.

A leader holds two things that its death releases. Its connection holds an advisory lock that is
named after its term: when the process dies, the server sees the connection end and frees the lock
at once. Where the server does not see that, as behind a cut network, the lease ends: the leader
extends it every third of its length in a thread of its own. A standby takes over when either is
gone. The server's clock alone counts.

A leader that is stopped within a transaction keeps the row locked. The server breaks its connection
after the length of the lease, so that the takeover has to wait no longer than that.
"""

import logging
import threading
import time

import psycopg
from msgspec import Struct

from strata.errors import NotLeading
from strata.store.postgres.postgres_tables import Connection, asking, connect

log = logging.getLogger(__name__)

LOCK_SPACE = int.from_bytes(b"Stra", "big")
SHARED = " FOR SHARE"
LOCK_OF_TERM = (
    "locktype = 'advisory' AND granted AND classid = %s AND objid = %s AND objsubid = 2 "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Leader(Struct, frozen=True):
    """Who leads: `left_s` is the rest of the lease, below 0 when it has ended."""

    term: int
    holder: str
    left_s: float


def read_leader(db: Connection, lock: str = "") -> Leader:
    """The leader as the table has it; `lock` is a locking clause."""
    left = "cast(extract(epoch FROM until - clock_timestamp()) AS float8)"
    sql = f"SELECT term, holder, {left} FROM leader WHERE id = 1{lock}"
    [[term, holder, left_s]] = asking(db)(sql, ())
    return Leader(term=term, holder=holder, left_s=left_s)


def is_vacant(db: Connection) -> bool:
    """Whether another coordinator may take over: the leader's lease or its lock is gone."""
    leader = read_leader(db)
    held = db.execute(
        f"SELECT 1 FROM pg_locks WHERE {LOCK_OF_TERM}",
        (LOCK_SPACE, _key(leader.term)),
    )
    return leader.left_s < 0 or held.fetchone() is None


def take_over(db: Connection, holder: str, lease_s: float) -> int:
    """Become the leader on this connection and return the new term.

    Raises `NotLeading` while another one leads.
    """
    seen = read_leader(db)
    gone = seen.left_s < 0 or _try_lock(db, seen.term)
    try:
        if not gone:
            raise NotLeading(
                f"{seen.holder} leads and writes this store",
                hint=f"its lease ends in {seen.left_s:.1f} s, unless it is extended",
            )
        return _take_over(db, seen, holder, lease_s)
    except psycopg.errors.LockNotAvailable:
        raise NotLeading(f"a transaction of {seen.holder} has not ended yet") from None
    finally:
        db.execute("SELECT pg_advisory_unlock(%s, %s)", (LOCK_SPACE, _key(seen.term)))


def _take_over(db: Connection, seen: Leader, holder: str, lease_s: float) -> int:
    term = seen.term + 1
    with db.transaction():
        # Transactions of the old leader share a lock of this row: they end before it changes, or
        # are refused.
        updated = db.execute(
            "UPDATE leader SET term = %s, holder = %s, "
            "until = clock_timestamp() + make_interval(secs => %s) WHERE id = 1 AND term = %s",
            (term, holder, lease_s, seen.term),
        )
        if updated.rowcount != 1:
            raise NotLeading("another coordinator took over first", hint="it leads now")
        hold(db, term)
    return term


def hold(db: Connection, term: int) -> None:
    """Hold the lock of a term as long as the connection lives."""
    db.execute("SELECT pg_advisory_lock(%s, %s)", (LOCK_SPACE, _key(term)))


def hold_again(db: Connection, term: int) -> None:
    """Hold the lock of a term on a new connection of its leader.

    The server may not have noticed yet that the old connection broke: it is ended.
    """
    db.execute(
        f"SELECT pg_terminate_backend(pid) FROM pg_locks WHERE {LOCK_OF_TERM} "
        "AND pid <> pg_backend_pid()",
        (LOCK_SPACE, _key(term)),
    )
    hold(db, term)


def require_term(db: Connection, term: int) -> None:
    """Refuse to write for a leader that was deposed; otherwise its row is locked until the
    transaction ends."""
    leader = read_leader(db, SHARED)
    if leader.term != term:
        raise deposed(leader)


def deposed(leader: Leader) -> NotLeading:
    """The error for a leader that another one replaced."""
    return NotLeading(
        f"{leader.holder} took over and leads; this coordinator can write nothing any more",
        hint="send requests to the coordinator that leads",
    )


def _try_lock(db: Connection, term: int) -> bool:
    row = db.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCK_SPACE, _key(term))).fetchone()
    return row is not None and bool(row[0])


def _key(term: int) -> int:
    return term % 2**31


class Lease:
    """Extends the lease of a leader in a thread until it is closed, or another one leads."""

    def __init__(self, url: str, name: str, term: int, lease_s: float) -> None:
        self._url = url
        self._name = name
        self._term = term
        self._lease_s = lease_s
        self._db: Connection | None = None
        self._over = threading.Event()
        self._ends_s = time.monotonic() + lease_s
        self._thread = threading.Thread(target=self._run, name="strata-lease", daemon=True)
        self._thread.start()

    @property
    def held(self) -> bool:
        """Whether this leader still leads for certain."""
        return time.monotonic() < self._ends_s

    def close(self) -> None:
        """Stop extending, and end the lease so that another one may lead at once."""
        self._over.set()
        self._thread.join()
        try:
            self._extend(0.0)
        except psycopg.Error as error:
            log.warning("the lease of the store %s ends by itself: %s", self._name, error)
        if self._db is not None:
            self._db.close()

    def _run(self) -> None:
        while not self._over.wait(self._lease_s / 3):
            try:
                began_s = time.monotonic()
                if not self._extend(self._lease_s):
                    self._ends_s = began_s
                    return
                self._ends_s = began_s + self._lease_s
            except psycopg.Error as error:
                log.warning("the lease of the store %s was not extended: %s", self._name, error)

    def _extend(self, lease_s: float) -> bool:
        """Extend the lease; returns whether this leader still leads."""
        if self._db is None or self._db.closed:
            self._db = connect(self._url, write=True)
        updated = self._db.execute(
            "UPDATE leader SET until = clock_timestamp() + make_interval(secs => %s) "
            "WHERE id = 1 AND term = %s",
            (lease_s, self._term),
        )
        return updated.rowcount == 1
