"""The questions: a table from name to text and the function that answers it.

`from_event` finds the question that fits an event, so that every event can be asked about.
"""

import inspect
from collections.abc import Callable
from types import UnionType
from typing import get_args

from msgspec import Struct

from strata.errors import InvalidArgument
from strata.timeline.answers import Cost, ParamAnswer, QuestionAnswer
from strata.timeline.read.records import MS_NS, Record
from strata.timeline.why import (
    alert_evidence,
    barrier_stalls,
    checkpoint_outcomes,
    coordinator_outages,
    hangs,
    message_delivery,
    run_checks,
    slow_recovery,
    slow_workers,
    task_changes,
    throughput_drops,
    timeout_replay,
    worker_losses,
)
from strata.timeline.why.investigation import Answer, LogSearch


class Question(Struct, frozen=True):
    """A question and the function that answers it."""

    number: int
    name: str
    text: str
    ask: Callable[..., Answer]

    @property
    def params(self) -> list[ParamAnswer]:
        """The parameters: the arguments of the function, without the first one, the log search."""
        found = list(inspect.signature(self.ask).parameters.values())[1:]
        return [
            ParamAnswer(each.name, _kind(each.annotation), each.default is inspect.Parameter.empty)
            for each in found
        ]

    def shown(self) -> QuestionAnswer:
        """The question as the API lists it."""
        return QuestionAnswer(self.name, self.text, self.params)


def _kind(hint: object) -> str:
    options = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return {str: "text", int: "integer", float: "number"}[options[0]]


QUESTIONS: dict[str, Question] = {
    question.name: question
    for question in (
        Question(
            number=1,
            name="delivery",
            text="Why did B not receive what A sent?",
            ask=message_delivery.delivery,
        ),
        Question(
            number=2,
            name="barrier",
            text="Why did this barrier stall, and who was late?",
            ask=barrier_stalls.barrier,
        ),
        Question(number=3, name="slow", text="Why was this worker slow?", ask=slow_workers.slow),
        Question(
            number=4,
            name="samples",
            text="Which samples did a failure affect?",
            ask=slow_recovery.samples,
        ),
        Question(
            number=5,
            name="checkpoint",
            text="Why was this checkpoint not committed?",
            ask=checkpoint_outcomes.checkpoint,
        ),
        Question(
            number=6,
            name="lost",
            text="Why was a worker declared lost; was it dead?",
            ask=worker_losses.lost,
        ),
        Question(
            number=7,
            name="moved",
            text="Why did this shard move, and did it have to?",
            ask=task_changes.moved,
        ),
        Question(
            number=8,
            name="changed",
            text="Why did the task or its generation change?",
            ask=task_changes.changed,
        ),
        Question(
            number=9,
            name="restored",
            text="Which checkpoint was loaded, and why?",
            ask=checkpoint_outcomes.restored,
        ),
        Question(
            number=10,
            name="request",
            text="Why was this request not answered?",
            ask=message_delivery.request,
        ),
        Question(
            number=11,
            name="recovery",
            text="Why is recovery slow, or looping?",
            ask=slow_recovery.recovery,
        ),
        Question(
            number=12,
            name="throughput",
            text="Why did steps per second drop?",
            ask=throughput_drops.throughput,
        ),
        Question(
            number=13,
            name="unfinished",
            text="What was a lost worker doing?",
            ask=worker_losses.unfinished,
        ),
        Question(
            number=14,
            name="differs",
            text="Where does another run, or a fork, first differ?",
            ask=run_checks.differs,
        ),
        Question(number=15, name="trust", text="Can this log be trusted?", ask=run_checks.trusted),
        Question(
            number=16,
            name="timeout",
            text="Would a different timeout also lose it?",
            ask=timeout_replay.timeout,
        ),
        Question(
            number=17,
            name="hang",
            text="Did the task hang, and which rank do the others wait for?",
            ask=hangs.hang,
        ),
        Question(
            number=18,
            name="alert",
            text="Why was this alert raised?",
            ask=alert_evidence.alert,
        ),
        Question(
            number=19,
            name="outage",
            text="Was the coordinator away, and for how long?",
            ask=coordinator_outages.outage,
        ),
    )
}


def ask(search: LogSearch, name: str, params: dict[str, str]) -> Answer:
    """Answer a question; the parameters are checked and converted from text."""
    question = QUESTIONS.get(name)
    if question is None:
        raise InvalidArgument(
            f"unknown question {name[:80]!r}", hint=f"the questions are {', '.join(QUESTIONS)}"
        )
    known = {param.name: param for param in question.params}
    for unknown in params.keys() - known.keys():
        raise InvalidArgument(
            f"the question {name} has no parameter {unknown[:80]!r}",
            hint=f"its parameters are {', '.join(known)}" if known else "it has no parameters",
        )
    for param in known.values():
        if param.required and not params.get(param.name):
            raise InvalidArgument(
                f"the question {name} needs {param.name}",
                hint=_values(search, name) or f"add {param.name}=… ({param.kind})",
            )
    given = {each: _converted(known[each], value) for each, value in params.items() if value}
    return question.ask(search, **given)


def _values(search: LogSearch, question: str) -> str:
    """A hint with the values of a question's parameter, if the log names them."""
    if question != "alert":
        return ""
    names = alert_evidence.alerts(search)
    more = "; `strata alerts --all` lists them" if len(names) == alert_evidence.NAMED else ""
    if not names:
        return "this log has no alerts"
    return f"use `strata why alert {names[-1]}`; this log has {', '.join(names)}{more}"


def _converted(param: ParamAnswer, value: str) -> object:
    try:
        return {"text": str, "integer": int, "number": float}[param.kind](value)
    except ValueError as error:
        raise InvalidArgument(
            f"{param.name} is {value[:80]!r}, not of type {param.kind}",
            hint=f"use {param.name}=… with a value of type {param.kind}",
        ) from error


SUGGESTED: dict[str, tuple[str, tuple[str, ...]]] = {
    "CoordinatorStarted": ("outage", ()),
    "StoreRefused": ("outage", ()),
    "WorkerLost": ("lost", ("worker",)),
    "AlertRaised": ("alert", ("alert",)),
    "AlertRepeated": ("alert", ("alert",)),
    "AlertResolved": ("alert", ("alert",)),
    "AlertDelivered": ("alert", ("alert",)),
    "AlertDeliveryFailed": ("alert", ("alert",)),
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
    "StacksRequested": ("hang", ("task",)),
    "StacksCollected": ("hang", ("task",)),
    "StackCollectionEnded": ("hang", ("task",)),
}
TIMED = frozenset({"lost", "unfinished", "changed", "samples", "slow", "hang", "outage"})
BY_NODE = {"request": "worker", "slow": "worker"}


def from_event(record: Record) -> tuple[str, dict[str, str]] | None:
    """The question that fits an event, with its parameters; None if none fits."""
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
    """The sender and the receiver of an event's message; None if the event does not name them."""
    time_ms = repr(record.at_ns / MS_NS)
    peer = record.text("peer")
    if record.kind == "PeerLagged":
        return {"sender": record.node, "receiver": peer, "time_ms": time_ms}
    if record.kind == "ExchangeCompleted":
        return {"sender": peer, "receiver": record.node, "time_ms": time_ms} if peer else None
    return {"sender": record.text("sender"), "receiver": record.node}


def why_event(search: LogSearch, record: Record) -> tuple[str, Answer]:
    """Answer the question that fits an event, or give the event's chain of causes."""
    suggested = from_event(record)
    if suggested is not None:
        name, params = suggested
        return name, ask(search, name, params)
    chain = search.ancestry(record)
    reason = record.text("reason")
    if len(chain) == 1 and reason:
        text = f"yes: no event before it is its cause; its own record says why: {reason}"
        return "cause", Answer(verdict="yes", text=text, chain=chain)
    if len(chain) == 1:
        text = "unknown: no cause of this event is recorded"
        return "cause", Answer(verdict="unknown", text=text, chain=chain, cost=Cost())
    return "cause", Answer(verdict="yes", text=f"yes: it began with: {chain[0].text}", chain=chain)
