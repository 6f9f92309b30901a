"""Every kind of fact as one plain sentence.

`TEMPLATES` maps each kind to a sentence over its fields; a test checks that no kind lacks one. The
subject of a worker's own event is left out where the worker is shown beside the sentence. A user's
own kind is shown by its name and fields.

How a template is written:

    {size_bytes}         the field's value, in the unit that its name ends with
    {slots:slot}         a number of things: 1 slot, 2 slots
    {offset_ns:ahead}    a difference of time: 2 ms ahead, 2 ms behind
    [: {reason}]         left out when the field has no value
    [{ok:?}did|did not]  the second text when the field has no value; `?` prints nothing itself
"""

import re
from collections.abc import Mapping
from functools import cache
from string import Formatter
from typing import NamedTuple

import msgspec

from strata.timeline.records import SECOND_NS, Record

TEXT_CHARS = 200
ITEMS = 4
HASH_CHARS = 12
FORMATTER = Formatter()
CHOICE = re.compile(r"\[([^\[\]|]*)(?:\|([^\[\]|]*))?\]")

TEMPLATES: dict[str, str] = {
    "CoordinatorStarted": "the coordinator started, incarnation {incarnation}[, release {release}]",
    "WorkerRegistered": "{worker} registered for {task}[ from {hostname}], "
    "incarnation {incarnation}",
    "WorkerRejected": "{worker} was refused registration[: {reason}]",
    "WorkerStateChanged": "{worker} went from {before} to {after}[: {reason}]",
    "WorkerReturned": "{worker} reconnected[: {reason}]",
    "WorkerLost": "{worker} was declared lost ({signal})[: {reason}]",
    "WorkerFenced": "incarnation {incarnation} of {worker} was fenced[: {reason}]",
    "WorkerExited": "the process of {worker} "
    "[was killed by signal {signal}|exited with code {code}]",
    "AgentRegistered": "{agent} registered on host {hostname} with {slots:slot}",
    "AgentSlotsChanged": "{agent} changed from {before:slot} to {after:slot}",
    "AgentLost": "{agent} was lost[: {reason}]",
    "GenerationChanged": "generation {generation} of {task} has {world_size:worker}[: {reason}]",
    "GenerationEntered": "{worker} entered generation {generation} "
    "[with a model at step {step}|without a model]",
    "RecoveryChosen": "generation {generation} of {task} continues at step {step} "
    "(state: {source}[ {checkpoint}][ {worker}])[: {reason}]",
    "StepsCommitted": "steps {first} to {last} of {task} were committed[: {reason}]",
    "RolledBack": "{task} rolled back from step {origin} to step {to}[: {reason}]",
    "DatasetRegistered": "dataset {dataset} was registered",
    "DatasetAttached": "{task} trains on dataset {dataset}, divided into {unit}s: {count}",
    "LoopOpened": "a loop over {dataset} started: step {start} of the run "
    "is step {first} of the dataset",
    "ValueAgreed": "the workers agreed on {key}[: {value}]",
    "LoopLeft": "{worker} left a loop (place {loop} in the script) before its end, "
    "after step {step}",
    "TrainingEnded": "{worker} finished training at step {step}",
    "AssignmentChanged": "{moved:part} of {dataset} changed owner at step {step}[: {reason}]",
    "EpochAdvanced": "{task} started epoch {epoch} of {dataset}[: {reason}]",
    "LeaseGranted": "{worker} got the lease of shard {shard} of {dataset}, epoch {epoch}",
    "LeaseReturned": "{worker} returned shard {shard} of {dataset} "
    "[{consumed:?}after training it|before its end][: {reason}]",
    "BarrierOpened": "barrier {barrier} opened for {expected:worker}",
    "BarrierArrived": "{worker} arrived at barrier {barrier}",
    "BarrierReleased": "barrier {barrier} released {participants:worker}[: {reason}]",
    "BarrierFailed": "barrier {barrier} failed[ (missing: {missing})][: {reason}]",
    "CheckpointRequested": "a checkpoint of {task} was requested[: {reason}]",
    "CheckpointPostponed": "{worker} did not save step {step} of {task}[: {reason}]",
    "CheckpointScheduled": "every worker of {task} will save step {step}",
    "ExchangeBroken": "{worker} could not exchange data with its peers[: {reason}]",
    "PaceMeasured": "lanes of {dataset} are redistributed by worker speed[: {reason}]",
    "RecoveryRefused": "{worker} could not restore its state (source: {source})[: {reason}]",
    "StorageUnreachable": "{worker} cannot read checkpoint {checkpoint} from storage[: {reason}]",
    "StorageReached": "{task} waited {waited_s} for storage[: {reason}]",
    "SampleSkipped": "skipped row {row} of {dataset} in {file}[: {reason}]",
    "CheckpointStarted": "{worker} started checkpoint {checkpoint} of step {step}",
    "CheckpointPartAcked": "rank {rank} ({worker}) stored its part of checkpoint {checkpoint}"
    "[, {size_bytes}]",
    "CheckpointSealed": "every part of checkpoint {checkpoint} is stored[, {size_bytes}]",
    "CheckpointCommitted": "checkpoint {checkpoint} of step {step} was committed"
    "[ in {path}][: {size_bytes} written][, {kept_bytes} unchanged][, {took_s}]",
    "CheckpointCopied": "checkpoint {checkpoint} was copied to {path}",
    "CheckpointFailed": "checkpoint {checkpoint} failed[ (missing ranks: {missing})][: {reason}]",
    "CheckpointDeleted": "checkpoint {checkpoint} was deleted[: {reason}]",
    "CheckpointPinned": "{holder} started to read checkpoint {checkpoint}",
    "CheckpointReleased": "{holder} no longer needs checkpoint {checkpoint}",
    "TaskSubmitted": "{task} was submitted",
    "TaskPlaced": "workers of {task} were assigned to hosts[: {reason}]",
    "TaskStateChanged": "{task} went from {before} to {after}[: {reason}]",
    "FactsMoved": "{facts:fact} (@{first} to @{last}) moved from the log to {place}",
    "FactLost": "this fact was lost: the log was damaged from @{first} to before @{stop}",
    "LogSalvaged": "the damaged log was salvaged; the state continues from @{base}[, lost: {lost}]",
    "EventsMoved": "{events:event} of the workers of {task} moved from the log to file {stretch}",
    "EventsReleased": "{events:event} of the workers of {task} moved to the archived run {run}",
    "RunDeleted": "the archived run {run} was deleted[: {reason}]",
    "LimitHit": "the limit {limit} ({value}) was reached[: {reason}]",
    "RunStarted": "the process of {worker} started[ on {hostname}][ as {role}]",
    "RunEnded": "the process ended ({outcome}) after {steps:step}[: {reason}]",
    "CoordinatorStateSeen": "learned that {task} is {state}: "
    "generation {generation} {phase}[, rank {rank} of {world_size}]",
    "RequestSubmitted": "sent request {type}[ for barrier {barrier}] to the coordinator",
    "RequestCompleted": "request {type}[ for barrier {barrier}] "
    "[{ok:?}succeeded|failed][: {error}]",
    "ConnectionChanged": "the connection to {peer} is now {path}[: {reason}]",
    "NeighborsChanged": "gossip neighbors changed[, added: {added}][, removed: {removed}]",
    "PeerLatencyChanged": "the latency to {peer} is now {latency_s}",
    "BlobAdded": "offers {what} to its peers as blob {blob}[, {size_bytes}]",
    "BlobUploadStarted": "started to send blob {blob} to {to}[, {size_bytes}], attempt {attempt}",
    "BlobUploadProgress": "sent {done_bytes}[ of blob {blob}] so far",
    "BlobUploadCompleted": "[{ok:?}sent|failed to send] [blob {blob}|a blob][ to {to}]"
    "[, {sent_bytes}][ in {took_s}][: {error}]",
    "BlobDownloadStarted": "started to fetch blob {blob} from {source}[, {size_bytes}], "
    "attempt {attempt}",
    "BlobDownloadProgress": "fetched {done_bytes}[ of blob {blob}] so far",
    "BlobDownloadCompleted": "[{ok:?}fetched|failed to fetch] [blob {blob}|a blob][ from {source}]"
    "[, {received_bytes}][ in {took_s}][: {error}]",
    "ExchangeOpened": "connected to the members of generation {generation} over {transport}"
    "[: {members}]",
    "ExchangeStarted": "started to exchange values with its peers at step {step}, "
    "generation {generation}",
    "ExchangeCompleted": "[{ok:?}exchanged|failed to exchange] values with [{peer}|its peers]"
    "[ at step {step}], generation {generation}[ in {took_s}]"
    "[, sent {sent_bytes}][, received {received_bytes}][: {error}]",
    "PeerLagged": "{peer} receives slowly: [{held_bytes}|data] waited {held_s}",
    "MessageSent": "sent {type} {message}[ to {to}], attempt {attempt}",
    "MessageReceived": "received {type} {message} from {sender}",
    "MessageRejected": "rejected [{type}|message][ {message}][ from {sender}][: {reason}]",
    "BatchesAssigned": "was assigned [{samples:sample} of each batch|no samples] of {dataset}"
    "[ from {first_batch}][ to {last_batch}], starting at step {step}",
    "DatasetOpenStarted": "started to open dataset {dataset}[ at {source}]",
    "DatasetOpenCompleted": "[{ok:?}opened|failed to open] [dataset {dataset}|a dataset]"
    "[ in {took_s}][: {error}]",
    "BatchDownloadRequested": "asked for [{source}|a file] for batch {batch}[, {size_bytes}], "
    "attempt {attempt}",
    "BatchDownloadStarted": "started to download [{source} for |]batch {batch}[, {size_bytes}]"
    "[, after {queued_s} in the queue]",
    "BatchDownloadProgress": "downloaded {done_bytes}[ of a file of batch {batch}] so far",
    "BatchDownloadCompleted": "[{ok:?}downloaded|failed to download] [{source} for |]"
    "[batch {batch}|a batch][ in {took_s}][: {error}]",
    "TrainingStarted": "started to train batch {batch}",
    "TrainingFinished": "trained batch {batch}[, loss {loss}]",
    "ResultDeserializeStarted": "started to decode the result of batch {batch}",
    "ResultDeserializeProgress": "decoded {done_bytes}[ of the result of batch {batch}] so far",
    "ResultDeserializeCompleted": "[{ok:?}decoded|failed to decode] the result of "
    "[batch {batch}|a batch][: {error}]",
    "ResultsApplyStarted": "started to apply the results of {workers:worker} at step {step}",
    "ResultsApplied": "[{ok:?}applied|failed to apply] [the results of {batches}|no results]"
    "[ from {owners}][ at step {step}][: {error}]",
    "ParametersRequested": "[{ok:?}got the model from|failed to get the model from] {peer}"
    "[: {error}]",
    "CheckpointDownloadStarted": "started to download checkpoint {checkpoint}[, {size_bytes}]",
    "CheckpointDownloadProgress": "downloaded {done_bytes}[ of checkpoint {checkpoint}] so far",
    "CheckpointDownloadCompleted": "[{ok:?}downloaded|failed to download] "
    "[checkpoint {checkpoint}|a checkpoint][: {error}]",
    "ModelLoadStarted": "started to load the model[ from checkpoint {checkpoint}]",
    "ModelLoadProgress": "loaded {done_bytes} of the model[ from checkpoint {checkpoint}] so far",
    "ModelLoadCompleted": "[{ok:?}loaded|failed to load] the model[ from checkpoint {checkpoint}]"
    "[: {error}]",
    "ModelSerializationStarted": "started to copy the model[ for checkpoint {checkpoint}]",
    "ModelSerializationProgress": "copied {done_bytes} of the model"
    "[ for checkpoint {checkpoint}] so far",
    "ModelSerializationCompleted": "[{ok:?}copied|failed to copy] the model"
    "[ for checkpoint {checkpoint}][: {error}]",
    "CheckpointWriteStarted": "started to write its part of checkpoint {checkpoint}"
    "[, {size_bytes}]",
    "CheckpointWriteProgress": "wrote {done_bytes}[ of checkpoint {checkpoint}] so far",
    "CheckpointWriteCompleted": "[{ok:?}wrote|failed to write] its part of "
    "[checkpoint {checkpoint}|a checkpoint][: {error}]",
    "CheckpointUploadStarted": "started to upload its part of checkpoint {checkpoint}"
    "[, {size_bytes}]",
    "CheckpointUploadProgress": "uploaded {done_bytes}[ of checkpoint {checkpoint}] so far",
    "CheckpointUploadCompleted": "[{ok:?}uploaded|failed to upload] its part of "
    "[checkpoint {checkpoint}|a checkpoint][: {error}]",
    "StepFinished": "finished step {step}: data {data_s}, compute {compute_s}, "
    "communication {communication_s}, wait {wait_s}[, loss {loss}]",
    "ResourceSnapshot": "uses {cpu_percent} % CPU and {memory_used_bytes} of memory",
    "ClockSampled": "the coordinator's clock is {offset_ns:ahead}",
    "EventsDropped": "{count:event} were lost before they were recorded[: {reason}]",
    "LogLine": "{level}: {message}",
}


class Piece(NamedTuple):
    """Text of a template, and the field after it, if there is one."""

    text: str
    field: str | None
    unit: str


class Part(NamedTuple):
    """A part of a template; one in brackets has another text for when a field has no value."""

    pieces: tuple[Piece, ...]
    otherwise: tuple[Piece, ...] | None


def sentence(record: Record) -> str:
    """What a record says, in one line."""
    template = TEMPLATES.get(record.kind) if record.known else None
    fields = record.fields()
    if template is not None:
        text = "".join(_filled(part, fields) for part in parsed(template))
    else:
        given = {name: value for name, value in fields.items() if value not in (None, "", [], {})}
        text = f"{record.kind}: {_listed(given)}" if given else record.kind
    return shortened(" ".join(text.split()))


@cache
def parsed(template: str) -> tuple[Part, ...]:
    """A template as its parts."""
    parts, end = [], 0
    for found in CHOICE.finditer(template):
        parts.append(Part(_pieces(template[end : found.start()]), None))
        parts.append(Part(_pieces(found[1]), _pieces(found[2] or "")))
        end = found.end()
    return (*parts, Part(_pieces(template[end:]), None))


def _pieces(text: str) -> tuple[Piece, ...]:
    return tuple(Piece(before, name, unit or "") for before, name, unit, _ in FORMATTER.parse(text))


def _filled(part: Part, fields: Mapping[str, object]) -> str:
    pieces = part.pieces
    if part.otherwise is not None and not all(
        _has_value(piece.field, fields.get(piece.field)) for piece in pieces if piece.field
    ):
        pieces = part.otherwise
    return "".join(
        piece.text + (_measured(piece, fields.get(piece.field)) if piece.field else "")
        for piece in pieces
    )


def _has_value(name: str, value: object) -> bool:
    """Whether a field says something; a size, a duration or a signal of 0 says nothing."""
    if name == "signal" or name.endswith(("_bytes", "_s")):
        return bool(value)
    return value is not False and value not in (None, "", -1, [], {})


def _listed(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in fields.items())


def _measured(piece: Piece, value: object) -> str:
    """A field in the unit that its name ends with, or that the template names."""
    name = str(piece.field)
    if piece.unit == "?":
        return ""
    if isinstance(value, int) and piece.unit == "ahead":
        return f"{seconds(abs(value))} {'behind' if value < 0 else 'ahead'}"
    if isinstance(value, int) and piece.unit:
        return counted(value, piece.unit)
    if isinstance(value, int) and name.endswith("_ns"):
        return seconds(value)
    if isinstance(value, int | float) and name.endswith("_s"):
        return lasting(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return sized(value)
    return str(value)[:HASH_CHARS] if name == "blob" else shown(value)


def shown(value: object) -> str:
    """A value of a field, short enough for a sentence."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        more = f" and {len(value) - ITEMS} more" if len(value) > ITEMS else ""
        return (", ".join(map(shown, value[:ITEMS])) or "none") + more
    return value if isinstance(value, str) else str(msgspec.to_builtins(value))


def sized(count: int) -> str:
    """A number of bytes in the unit that people read it in."""
    if count < 1_000:
        return f"{count} B"
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1e3:,.1f} kB"


def shortened(text: str, most: int = TEXT_CHARS) -> str:
    """A text cut to a length."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def seconds(span_ns: float) -> str:
    """A span of time in words."""
    span_s = span_ns / SECOND_NS
    if abs(span_s) < 0.001:
        return f"{span_ns / 1000:.0f} µs"
    if abs(span_s) < 1:
        return f"{span_s * 1000:.0f} ms"
    if abs(span_s) < 120:
        return f"{span_s:.1f} s"
    if abs(span_s) < 7_200:
        return f"{span_s / 60:.1f} min"
    return f"{span_s / 3_600:.1f} h"


def lasting(span_s: float) -> str:
    """The same of a span in seconds."""
    return seconds(span_s * SECOND_NS)


def counted(number: int, noun: str, plural: str = "") -> str:
    """A number of things, in the right number."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {plural or f'{noun}s'}"
