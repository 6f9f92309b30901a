"""The sixteen questions: a table from a name to what it asks, what it needs, and who answers it.

`from_event` finds the question that an event suggests, so that one can ask why of anything.
"""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import get_args

from msgspec import Struct

from strata.errors import InvalidArgument
from strata.timeline.records import MS_NS, Record
from strata.timeline.why import (
    barriers,
    changes,
    checkpoints,
    deliveries,
    losses,
    messages,
    recovering,
    runs,
    slowness,
    throughput,
    timeouts,
)
from strata.timeline.why.case import Answer, Case, Cost


class Param(Struct, frozen=True):
    """Something a question needs to know."""

    name: str
    kind: str
    required: bool


class Question(Struct, frozen=True):
    """One of the sixteen."""

    number: int
    name: str
    text: str
    ask: Callable[..., Answer]

    @property
    def params(self) -> list[Param]:
        """What it needs: the arguments of the function that answers it."""
        found = list(inspect.signature(self.ask).parameters.values())[1:]
        return [
            Param(each.name, _kind(each.annotation), each.default is inspect.Parameter.empty)
            for each in found
        ]


def _kind(hint: object) -> str:
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return {str: "text", int: "integer", float: "number"}[options[0]]


QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        Question(1, "delivery", "A sent it, B never got it: why?", deliveries.delivery),
        Question(2, "barrier", "Why did this barrier stall, and who was late?", barriers.barrier),
        Question(3, "slow", "Why was this worker slow?", slowness.slow),
        Question(4, "samples", "Which samples did a failure affect?", recovering.samples),
        Question(5, "checkpoint", "Why was this checkpoint not committed?", checkpoints.checkpoint),
        Question(6, "lost", "Why was it declared lost, and was it dead?", losses.lost),
        Question(7, "moved", "Why did this shard move, and did it have to?", changes.moved),
        Question(8, "changed", "Why did the task or its generation change?", changes.changed),
        Question(9, "restored", "Which checkpoint was loaded, and why?", checkpoints.restored),
        Question(10, "request", "Why was this request not answered?", messages.request),
        Question(11, "recovery", "Why is recovery slow, or looping?", recovering.recovery),
        Question(12, "throughput", "Why did steps per second drop?", throughput.throughput),
        Question(13, "unfinished", "What was it doing when it was lost?", losses.unfinished),
        Question(14, "differs", "Where does another run first differ?", runs.differs),
        Question(15, "trust", "Can this log be trusted?", runs.trusted),
        Question(16, "timeout", "Would another timeout still have lost it?", timeouts.timeout),
    )
}


def ask(case: Case, name: str, params: dict[str, str]) -> Answer:
    """Asks one of the sixteen; the parameters come as text and are checked."""
    question = QUESTIONS.get(name)
    if question is None:
        raise InvalidArgument(
            f"there is no question {name[:80]!r}", hint=f"there are: {', '.join(QUESTIONS)}"
        )
    known = {param.name: param for param in question.params}
    for stranger in params.keys() - known.keys():
        raise InvalidArgument(
            f"the question {name} has no parameter {stranger[:80]!r}",
            hint=f"it has: {', '.join(known) or 'none'}",
        )
    for param in known.values():
        if param.required and not params.get(param.name):
            raise InvalidArgument(
                f"the question {name} needs {param.name}",
                hint=f"give it as {param.name}=… ({param.kind})",
            )
    given = {each: _converted(known[each], value) for each, value in params.items() if value}
    return question.ask(case, **given)


def _converted(param: Param, value: str) -> object:
    try:
        return {"text": str, "integer": int, "number": float}[param.kind](value)
    except ValueError as error:
        raise InvalidArgument(
            f"{param.name} is {value[:80]!r}", hint=f"it must be of kind {param.kind}"
        ) from error


SUGGESTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "WorkerLost": ("lost", ("worker",)),
    "WorkerExited": ("unfinished", ("worker",)),
    "BarrierOpened": ("barrier", ("barrier", "task", "round")),
    "BarrierArrived": ("barrier", ("barrier", "task", "round")),
    "BarrierReleased": ("barrier", ("barrier", "task", "round")),
    "BarrierFailed": ("barrier", ("barrier", "task", "round")),
    "CheckpointStarted": ("checkpoint", ("checkpoint", "task")),
    "CheckpointFailed": ("checkpoint", ("checkpoint", "task")),
    "CheckpointCommitted": ("checkpoint", ("checkpoint", "task")),
    "RecoveryChosen": ("restored", ("task", "generation")),
    "RolledBack": ("samples", ("task",)),
    "TaskStateChanged": ("changed", ("task",)),
    "GenerationChanged": ("changed", ("task", "generation")),
    "MessageSent": ("delivery", ("message",)),
    "MessageRejected": ("delivery", ("message",)),
    "MessageReceived": ("delivery", ("message",)),
    "ExchangeCompleted": ("delivery", ("step",)),
    "PeerLagged": ("delivery", ()),
    "RequestSubmitted": ("request", ("request",)),
    "RequestCompleted": ("request", ("request",)),
    "StepFinished": ("slow", ()),
    "EventsDropped": ("trust", ()),
}
TIMED = frozenset({"lost", "unfinished", "changed", "samples", "slow"})
BY_NODE = {"request": "worker", "slow": "worker"}


def from_event(record: Record) -> tuple[str, dict[str, str]] | None:
    """The question that an event suggests, with its parameters; None when none fits."""
    suggested = SUGGESTED.get(record.kind)
    if suggested is None:
        return None
    name, fields = suggested
    params = {field: record.text(field) for field in fields if record.text(field)}
    if name in BY_NODE:
        params[BY_NODE[name]] = record.node
    if name == "delivery" and record.kind != "MessageSent":
        ends = _ends(record)
        if ends is None:
            return None
        params |= ends
    if name in TIMED:
        params["time_ms"] = repr(record.at_ns / MS_NS)
    return name, params


def _ends(record: Record) -> dict[str, str] | None:
    """Who sent and who was to receive what an event is about; None when it does not say."""
    time_ms = repr(record.at_ns / MS_NS)
    peer = record.text("peer")
    if record.kind == "PeerLagged":
        return {"sender": record.node, "receiver": peer, "time_ms": time_ms}
    if record.kind == "ExchangeCompleted":
        return {"sender": peer, "receiver": record.node, "time_ms": time_ms} if peer else None
    return {"sender": record.text("sender"), "receiver": record.node}


def why_event(case: Case, record: Record) -> tuple[str, Answer]:
    """Why of an event: the question it suggests, or simply what led to it."""
    suggested = from_event(record)
    if suggested is not None:
        name, params = suggested
        return name, ask(case, name, params)
    chain = case.ancestry(record)
    if len(chain) == 1:
        text = "unknown: no cause of it is recorded"
        return "cause", Answer("unknown", text, chain, Cost())
    return "cause", Answer("yes", f"yes: it began with: {chain[0].text}", chain)
