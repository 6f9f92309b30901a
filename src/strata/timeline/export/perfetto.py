"""Export as a trace for ui.perfetto.dev and chrome://tracing.

The format is Chrome's JSON trace: one object with `traceEvents`. A node is a process with three
threads: its state (idle, training, lost), its steps, and its operations. States and steps are
complete events (`X`, with a duration); the parts of a step nest inside it. Operations may overlap,
so each is an asynchronous pair (`b`, `e`) with an id. Messages and causes are flows (`s` to `f`)
between short slices. Times are microseconds.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

import msgspec

from strata.core.events import COORDINATOR
from strata.core.workers.worker_facts import StepFinished
from strata.errors import NotFound
from strata.timeline.answers import LaneSpan
from strata.timeline.lanes.worker_lanes import MARKS, lanes
from strata.timeline.read.causes import ARRIVALS, receivers
from strata.timeline.read.operations import Operation, Pairing, step_parts
from strata.timeline.read.records import MS_NS, SECOND_NS, Record, is_fact
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.read.sentences import sentence

US_NS = 1_000
STATE, STEPS, WORK = 1, 2, 3
SHOWN_NS = 1_000_000
MAX_SENT = 65_536
Object = dict[str, object]


def trace(timeline: Timeline, from_ns: int, to_ns: int) -> Iterator[bytes]:
    """The trace of a window, in pieces."""
    yield b'{"displayTimeUnit":"ms","traceEvents":['
    first = True
    for event in _events(timeline, from_ns, to_ns):
        yield (b"" if first else b",\n") + msgspec.json.encode(event)
        first = False
    yield b"]}"


def _events(timeline: Timeline, from_ns: int, to_ns: int) -> Iterator[Object]:
    found = lanes(timeline, from_ns, to_ns, limit=10_000, fine=False).lanes
    pids = {COORDINATOR: 1} | {lane.node: number for number, lane in enumerate(found, 2)}
    for node, pid in pids.items():
        yield from _process(pid, node)
    for lane in found:
        yield from _states(lane.spans, pids[lane.node], to_ns)
    yield from _Flow(timeline, pids).events(timeline.records(from_ns, to_ns), to_ns)


def _process(pid: int, node: str) -> Iterator[Object]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": node}}
    yield {
        "ph": "M",
        "name": "process_sort_index",
        "pid": pid,
        "tid": 0,
        "args": {"sort_index": pid},
    }
    for tid, name in ((STATE, "state"), (WORK, "work")):
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _states(spans: list[LaneSpan], pid: int, to_ns: int) -> Iterator[Object]:
    """The states of a worker by the coordinator's facts, one after the other."""
    for span in spans:
        end_ms = to_ns / MS_NS if span.to_ms is None else span.to_ms
        args = {"ref": span.ref, "count": span.count}
        start_ns, end_ns = int(span.from_ms * MS_NS), int(end_ms * MS_NS)
        yield _slice(pid, STATE, span.label or span.kind, span.kind, start_ns, end_ns, args)


def _slice(
    pid: int,
    tid: int,
    name: str,
    category: str,
    start_ns: int,
    end_ns: int,
    args: Mapping[str, object],
) -> Object:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / US_NS,
        "dur": max(end_ns - start_ns, 0) / US_NS,
        "args": args,
    }


def _step(record: Record, body: StepFinished, pid: int, since_ns: int) -> Iterator[Object]:
    """A step with its parts; it starts after the last step, since slices must not cross."""
    parts = step_parts(body)
    at_ns = max(record.at_ns - int(sum(parts.values()) * SECOND_NS), since_ns)
    args = {"ref": record.ref, "loss": body.loss}
    yield _slice(pid, STEPS, f"step {body.step}", "step", at_ns, record.at_ns, args)
    for name, part_s in parts.items():
        end_ns = min(at_ns + int(part_s * SECOND_NS), record.at_ns)
        if part_s > 0:
            yield _slice(pid, STEPS, name, "step", at_ns, end_ns, {})
        at_ns = end_ns


class _Flow:
    """Operations, instants and arrows between them, in one pass over the records."""

    def __init__(self, timeline: Timeline, pids: dict[str, int]) -> None:
        self._timeline = timeline
        self._pids = pids
        self._pairing = Pairing()
        self._sent: OrderedDict[str, Record] = OrderedDict()
        self._stepped_ns: dict[int, int] = {}
        self._number = 0

    def events(self, records: Iterable[Record], to_ns: int) -> Iterator[Object]:
        """All trace events that are not states."""
        for record in records:
            pid = self._pids.get(record.node)
            if pid is None:
                continue
            body = record.event.body
            if isinstance(body, StepFinished):
                yield from _step(record, body, pid, self._stepped_ns.get(pid, 0))
                self._stepped_ns[pid] = record.at_ns
                continue
            ended = self._pairing.feed(record)
            for operation in self._pairing.given_up():
                yield from self._operation(operation, pid, record.at_ns)
            if ended is not None:
                yield from self._operation(ended, pid, to_ns)
            elif record.node == COORDINATOR or record.kind in MARKS or record.event.cause:
                yield from self._instant(record, pid)
            yield from self._message(record, pid)
        for operation in self._pairing.open.values():
            yield from self._operation(operation, self._pids[operation.node], to_ns)

    def _operation(self, operation: Operation, pid: int, to_ns: int) -> Iterator[Object]:
        """An asynchronous pair with its own id, because operations of a worker may overlap."""
        if operation.start is None:
            return
        self._number += 1
        common: Object = {
            "cat": operation.name,
            "name": operation.text,
            "id": self._number,
            "pid": pid,
            "tid": WORK,
        }
        end_ns = operation.end.at_ns if operation.end is not None else to_ns
        args = {"ref": operation.start.ref, "ok": operation.ok}
        yield common | {"ph": "b", "ts": operation.start.at_ns / US_NS, "args": args}
        yield common | {"ph": "e", "ts": max(end_ns, operation.start.at_ns) / US_NS}

    def _instant(self, record: Record, pid: int) -> Iterator[Object]:
        """An instant as a very short slice, so that arrows can be bound to it."""
        args = {"ref": record.ref, "text": sentence(record)}
        end_ns = record.at_ns + SHOWN_NS
        yield _slice(pid, WORK, record.kind, "fact", record.at_ns, end_ns, args)
        for ref in record.causes:
            cause = self._cause(ref)
            if cause is not None and cause.node in self._pids and cause.at_ns <= record.at_ns:
                yield from self._arrow("cause", cause, record)

    def _cause(self, ref: str) -> Record | None:
        return self._timeline.record(ref) if is_fact(ref) else None

    def _message(self, record: Record, pid: int) -> Iterator[Object]:
        name = record.text("message")
        if record.kind == "MessageSent":
            self._remember(record.ref, record)
            for receiver in receivers(record):
                self._remember(f"{name} {record.node} {receiver}", record)
            end_ns = record.at_ns + SHOWN_NS
            args = {"ref": record.ref}
            yield _slice(pid, WORK, f"send {name}", "message", record.at_ns, end_ns, args)
        elif record.kind in ARRIVALS:
            end_ns = record.at_ns + SHOWN_NS
            verb = "receive" if record.kind == "MessageReceived" else "reject"
            args = {"ref": record.ref}
            yield _slice(pid, WORK, f"{verb} {name}", "message", record.at_ns, end_ns, args)
            sent = self._sending(record, name)
            if sent is not None and sent.node in self._pids:
                yield from self._arrow("message", sent, record)

    def _remember(self, key: str, record: Record) -> None:
        """Remember a send for its arrivals; dropped ones are looked up again if needed."""
        self._sent[key] = record
        if len(self._sent) > MAX_SENT:
            self._sent.popitem(last=False)

    def _sending(self, arrival: Record, name: str) -> Record | None:
        """The send of an arrived message, if it is in the log."""
        named = [*arrival.causes, f"{name} {arrival.text('sender')} {arrival.node}"]
        sent = next((self._sent[each] for each in named if each in self._sent), None)
        if sent is not None:
            return sent
        for ref in arrival.causes:
            with suppress(NotFound):
                cause = self._timeline.record(ref)
                if cause.kind == "MessageSent":
                    return cause
        return None

    def _arrow(self, name: str, start: Record, end: Record) -> Iterator[Object]:
        self._number += 1
        common: Object = {"name": name, "cat": name, "id": self._number, "tid": WORK}
        begun_us = start.at_ns / US_NS
        yield common | {"ph": "s", "pid": self._pids[start.node], "ts": begun_us}
        end_us = max(end.at_ns / US_NS, begun_us)
        yield common | {"ph": "f", "bp": "e", "pid": self._pids[end.node], "ts": end_us}
