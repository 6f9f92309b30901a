"""Reads losses from the batches of events that workers send, in a thread.

The coordinator stores these batches without decoding them, and that stays so: a batch is looked at
after it is stored, and only if it has steps or metrics. Batches of rank 0 of each task are decoded,
because its losses make the series of the task. All others are only searched for the bytes of a
floating-point number that is NaN or infinite, which is five times faster; those that have one are
decoded. So no such value is missed, on whichever worker and for however short a time.

The queue is bounded. If the thread cannot keep up, the oldest batches are dropped, those of rank 0
last; the number is logged.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Iterator

import msgspec
from msgspec import Struct

from strata.core.alerts.loss_rules import LossSample
from strata.core.events import event_id
from strata.core.state import Cluster
from strata.errors import UNDECODABLE, StrataError
from strata.store.event_batches import inflate
from strata.store.event_store import Batch

log = logging.getLogger(__name__)

LOSSES = frozenset({"StepFinished", "MetricsLogged", "TrainingFinished"})
DROPPED = "EventsDropped"
LOOKED_AT = LOSSES | {DROPPED}
KINDS = tuple(
    (kind, b"\xa4kind" + bytes([0xA0 + len(kind)]) + kind.encode()) for kind in sorted(LOOKED_AT)
)
"""How the kind of a fact is encoded, at its start."""

NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""A msgpack float64 with all bits of its exponent set; other bytes may match too."""

KIND_BYTES = 32
MAX_QUEUE_BYTES = 32 * 2**20
MAX_SAMPLES = 200_000
LOG_EVERY_S = 60.0


class DroppedEvents(Struct, frozen=True):
    """A worker dropped events."""

    task: str
    worker: str
    count: int
    ref: str


class Found(Struct, frozen=True):
    """What was read from some batches."""

    samples: list[LossSample]
    dropped: list[DroppedEvents]


class _Event(Struct, array_like=True):
    seq: int
    wall_ns: int
    mono_ns: int
    body: msgspec.Raw


class _Body(Struct):
    """The fields of the kinds that are looked at."""

    step: int = -1
    loss: float | None = None
    metrics: dict[str, float] | None = None
    generation: int = 0
    count: int = 0


class _Queued(Struct, frozen=True):
    batch: Batch
    task: str
    leader: bool


_events = msgspec.msgpack.Decoder(list[_Event])
_body = msgspec.msgpack.Decoder(_Body)


class LossReader:
    """A bounded queue of batches, and the thread that reads them."""

    def __init__(self) -> None:
        self._queue: deque[_Queued] = deque()
        self._bytes = 0
        self._samples: deque[LossSample] = deque(maxlen=MAX_SAMPLES)
        self._dropped: deque[DroppedEvents] = deque(maxlen=1_000)
        self._lock = threading.Condition()
        self._closing = False
        self._busy = False
        self._skipped = 0
        self._logged_s = float("-inf")
        self._thread = threading.Thread(target=self._run, name="strata-losses", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            self._closing = True
            self._lock.notify()

    def offer(self, batch: Batch, state: Cluster) -> None:
        """Queue a stored batch, if it has steps or metrics."""
        if LOOKED_AT.isdisjoint(batch.kinds):
            return
        worker = state.workers.get(batch.node)
        if worker is None:
            return
        queued = _Queued(batch, worker.task, worker.rank == 0)
        with self._lock:
            self._queue.append(queued)
            self._bytes += len(batch.payload)
            while self._bytes > MAX_QUEUE_BYTES and len(self._queue) > 1:
                self._skip()
            self._lock.notify()

    def take(self) -> Found:
        """What was read since the last call."""
        with self._lock:
            samples, dropped = list(self._samples), list(self._dropped)
            self._samples.clear()
            self._dropped.clear()
            skipped, now_s = self._skipped, time.monotonic()
            if skipped and now_s - self._logged_s >= LOG_EVERY_S:
                self._logged_s, self._skipped = now_s, 0
                log.warning("alerts: %d batches of events were not searched for losses", skipped)
        return Found(samples, dropped)

    @property
    def idle(self) -> bool:
        """Whether all batches were read and their losses taken."""
        with self._lock:
            return not (self._queue or self._busy or self._samples or self._dropped)

    def _skip(self) -> None:
        place = next((n for n, each in enumerate(self._queue) if not each.leader), 0)
        self._bytes -= len(self._queue[place].batch.payload)
        del self._queue[place]
        self._skipped += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                self._busy = False
                while not self._queue and not self._closing:
                    self._lock.wait()
                if self._closing:
                    return
                queued = self._queue.popleft()
                self._bytes -= len(queued.batch.payload)
                self._busy = True
            try:
                samples, dropped = read(queued.batch, queued.task, leader=queued.leader)
            except (StrataError, *UNDECODABLE) as error:
                log.warning("alerts: a batch of %s cannot be read: %s", queued.batch.node, error)
                continue
            with self._lock:
                self._samples += samples
                self._dropped += dropped
            time.sleep(0)  # lets the event loop run, which waits for the interpreter's lock


def read(batch: Batch, task: str, *, leader: bool) -> tuple[list[LossSample], list[DroppedEvents]]:
    """The losses in a batch: all of a leader's, else those that are not finite."""
    payload = inflate(batch.payload)
    if not leader and DROPPED not in batch.kinds and NOT_FINITE.search(payload) is None:
        return [], []
    samples: list[LossSample] = []
    dropped: list[DroppedEvents] = []
    steps = "StepFinished" in batch.kinds
    for event in _events.decode(payload):
        kind = _kind(event.body)
        if not kind or (kind == "TrainingFinished" and steps):
            continue
        body = _body.decode(event.body)
        ref = event_id(batch.node, batch.incarnation, event.seq)
        if kind == DROPPED:
            dropped.append(DroppedEvents(task=task, worker=batch.node, count=body.count, ref=ref))
            continue
        for name, value in _losses(body):
            samples.append(
                LossSample(
                    task=task,
                    worker=batch.node,
                    generation=body.generation,
                    step=body.step,
                    name=name,
                    value=value,
                    ref=ref,
                    leader=leader,
                )
            )
    return samples, dropped


def _kind(raw: msgspec.Raw) -> str:
    """The kind of an encoded fact if it is looked at; its name is at the start."""
    head = memoryview(raw)[:KIND_BYTES].tobytes()
    return next((kind for kind, name in KINDS if name in head), "")


def _losses(body: _Body) -> Iterator[tuple[str, float]]:
    if body.loss is not None:
        yield "loss", body.loss
    for name, value in (body.metrics or {}).items():
        if "loss" in name.lower():
            yield name, value
