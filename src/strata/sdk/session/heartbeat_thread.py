"""The heartbeat thread: sends heartbeats, and collects and sends events and log lines.

Once a second, or sooner if there are many, events are packed and written to the spool, connected or
not. Lines and events are sent together every two seconds, within a window of unacknowledged bytes:
each wake-up of gRPC's threads costs the training process more than the bytes do. While the
coordinator says that a client reads them, both are done every `WATCHED_INTERVAL_S`.

A batch of events has the request number -1 - first_seq, which identifies it if it is refused.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from strata.core.events import Fact
from strata.core.workers.worker_facts import ClockSampled
from strata.errors import Overloaded, StrataError, Unavailable
from strata.sdk.record.line_buffer import LineBuffer
from strata.sdk.record.recorder import Recorder
from strata.sdk.record.spool import batch_message
from strata.sdk.session.requests import Outbox
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

COLLECT_INTERVAL_S = 1.0
SEND_INTERVAL_S = 2.0
WATCHED_INTERVAL_S = 0.2
MAX_WATCHED_S = 60.0
MAX_BACKLOG = 1_024
CLOSING_S = 2.0


class HeartbeatSource(Protocol):
    """The content of heartbeats. Called from the heartbeat thread."""

    def beat(self) -> pb.Beat:
        """The heartbeat to send now."""

    def tick(self) -> None:
        """Called about once a second, connected or not."""


class Heartbeat:
    """Sends a heartbeat every `interval_s` while connected.

    If it is not `automatic`, only `beat_soon` sends one.
    """

    def __init__(
        self,
        source: HeartbeatSource,
        interval_s: float,
        recorder: Recorder | None = None,
        lines: LineBuffer | None = None,
    ) -> None:
        self.interval_s = interval_s
        self.recorder = recorder
        self.lines = lines
        self.automatic = True
        self.on_tick: Callable[[], None] = lambda: None
        self._source = source
        self._outbox: Outbox | None = None
        self._sending = threading.Lock()
        self._wake = threading.Event()
        if recorder is not None:
            recorder.on_crowded = self._wake.set
        self._closing = False
        self._beating = True
        self._beat_wanted = False
        self._next_beat_s = 0.0
        self._next_send_s = 0.0
        self._watched_until_s = 0.0
        self._thread = threading.Thread(target=self._run, name="strata-pulse", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def attach(self, outbox: Outbox, stored_seq: int) -> None:
        """Use a new connection: send a heartbeat at once, and the events after `stored_seq`."""
        with self._sending:
            if self.recorder is not None:
                self.recorder.reattached(stored_seq)
            if self.lines is not None:
                self.lines.resend()
            self._outbox = outbox
        self._next_send_s = 0.0
        if self.automatic:
            self.beat_soon()
        else:
            self._wake.set()

    def detach(self) -> None:
        """Stop using the connection, which broke."""
        self._outbox = None

    def beat_soon(self) -> None:
        """Send a heartbeat now."""
        self._beat_wanted = True
        self._wake.set()

    def flush_soon(self) -> None:
        """Send collected events and lines now.

        Lines are acknowledged with the answer to the next message, at least to a heartbeat.
        """
        self._next_send_s = 0.0
        self.beat_soon()

    def send_last(self) -> None:
        """Send the collected events and stop the heartbeats, which a worker that left must not
        send."""
        self._beating = False
        self._next_send_s = 0.0
        self._wake.set()

    def stored(self, seq: int, lines: int = 0) -> None:
        """Note the events and lines that the coordinator has stored."""
        if self.lines is not None:
            self.lines.taken(lines)
        if self.recorder is not None:
            self.recorder.stored(seq)
            self._send_events()

    def refused(self, number: int, error: StrataError) -> None:
        """Handle a refused batch of events: retry it or drop it."""
        if isinstance(error, Unavailable | Overloaded):
            raise error
        log.warning("the coordinator refused a batch of events: %s", error)
        if self.recorder is not None:
            self.recorder.refused(-1 - number, error.message)

    def answered(self, pulse: pb.Pulse) -> None:
        """Handle the answer to a heartbeat: record the clock offset and the stored lines."""
        if self.lines is not None:
            self.lines.taken(pulse.lines)
        if pulse.watched_s > 0:
            self._watch(pulse.watched_s)
        now_mono_ns, now_wall_ns = time.monotonic_ns(), time.time_ns()
        round_trip_ns = now_mono_ns - pulse.sent_mono_ns
        offset_ns = pulse.server_wall_ns - (now_wall_ns - round_trip_ns // 2)
        self.emit(
            ClockSampled(
                offset_ns=offset_ns,
                round_trip_ns=round_trip_ns,
                server_mono_ns=pulse.server_mono_ns,
            )
        )

    def _watch(self, seconds: float) -> None:
        """Send events more often for some seconds."""
        now_s = time.monotonic()
        begins = self._watched_until_s <= now_s
        self._watched_until_s = now_s + min(seconds, MAX_WATCHED_S)
        if begins:
            self._next_send_s = 0.0
            self._wake.set()

    def emit(self, fact: Fact, op: str = "") -> None:
        """Record a fact, if there is a recorder."""
        if self.recorder is not None:
            self.recorder.emit(fact, op=op)

    @property
    def flushed(self) -> bool:
        """Whether the coordinator has stored all events and lines."""
        unsent = self.lines is not None and not self.lines.delivered
        undelivered = self.recorder is not None and not self.recorder.delivered
        return not unsent and not undelivered

    def close(self) -> None:
        """End the thread."""
        self._closing = True
        self._wake.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(CLOSING_S)

    def became_child(self) -> None:
        """Disable the heartbeat: a forked child has no thread for it."""
        self._outbox = None
        self._sending = threading.Lock()
        if self.recorder is not None:
            self.recorder.became_child()
        if self.lines is not None:
            self.lines.became_child()

    def _run(self) -> None:
        while not self._closing:
            try:
                self._once()
            except Exception:
                # Without heartbeats the worker would be declared lost, so this thread continues.
                log.exception("an iteration of the heartbeat thread failed")
            watched = time.monotonic() < self._watched_until_s
            due_s = WATCHED_INTERVAL_S if watched else COLLECT_INTERVAL_S
            if self._outbox is not None and self._beating and self.automatic:
                due_s = min(max(self._next_beat_s - time.monotonic(), 0.0), due_s)
            self._wake.wait(due_s)
            self._wake.clear()

    def _once(self) -> None:
        self._source.tick()
        self.on_tick()
        if self.recorder is not None:
            self.recorder.collect()
        outbox, now_s = self._outbox, time.monotonic()
        if now_s >= self._next_send_s:
            watched = now_s < self._watched_until_s
            self._next_send_s = now_s + (0.9 * WATCHED_INTERVAL_S if watched else SEND_INTERVAL_S)
            self._send_lines()
            self._send_events()
        by_clock = self.automatic and now_s >= self._next_beat_s
        if outbox is not None and self._beating and (self._beat_wanted or by_clock):
            self._beat_wanted = False
            self._next_beat_s = now_s + self.interval_s
            if outbox.backlog < MAX_BACKLOG:
                beat = self._source.beat()
                beat.sent_mono_ns, beat.sent_wall_ns = time.monotonic_ns(), time.time_ns()
                outbox.put(pb.WorkerMessage(beat=beat))

    def _send_events(self) -> None:
        # Both threads of a session call this; batches must stay in order.
        with self._sending:
            outbox = self._outbox
            while outbox is not None and self.recorder is not None:
                batch = self.recorder.to_send()
                if batch is None:
                    return
                number = -1 - batch.first_seq
                events = batch_message(batch)
                outbox.put(pb.WorkerMessage(request=number, events=events))

    def _send_lines(self) -> None:
        with self._sending:
            outbox = self._outbox
            while outbox is not None and self.lines is not None and outbox.backlog < MAX_BACKLOG:
                lines = self.lines.take()
                if lines is None:
                    return
                outbox.put(pb.WorkerMessage(logs=lines))
