"""Every kind of fact as one plain sentence.

A table from kind to a template over the fact's fields; a kind that is not in it, such as a user's
own, is told by its name and fields.
"""

from collections.abc import Mapping
from string import Formatter

import msgspec

from strata.timeline.records import SECOND_NS, Record

TEXT_CHARS = 200
ITEMS = 4

TEMPLATES: dict[str, str] = {
    "CoordinatorStarted": "the coordinator started, incarnation {incarnation}",
    "WorkerRegistered": "{worker} joined {task} as incarnation {incarnation} from {hostname}",
    "WorkerRejected": "{worker} was not let in: {reason}",
    "WorkerStateChanged": "{worker} went from {before} to {after}: {reason}",
    "WorkerReturned": "{worker} came back: {reason}",
    "WorkerLost": "{worker} was declared lost by {signal}: {reason}",
    "WorkerFenced": "incarnation {incarnation} of {worker} was refused: {reason}",
    "WorkerExited": "the process of {worker} ended with code {code}, signal {signal}",
    "AgentRegistered": "host {hostname} offers {slots} slots as {agent}",
    "AgentSlotsChanged": "{agent} offers {after} slots instead of {before}",
    "AgentLost": "{agent} was lost: {reason}",
    "GenerationChanged": "generation {generation} of {task} has {world_size} workers: {reason}",
    "GenerationEntered": "{worker} entered generation {generation} with a model at step {step}",
    "RecoveryChosen": "generation {generation} goes on at step {step} from {source}: {reason}",
    "StepsCommitted": "steps {first} to {last} of {task} count: {reason}",
    "RolledBack": "{task} rolled back from step {origin} to {to}: {reason}",
    "DatasetRegistered": "dataset {dataset} was registered",
    "DatasetAttached": "{task} trains on {dataset} in {count} {unit}s",
    "LoopOpened": "loop {loop} trains {dataset} from step {start} on, at its step {first}",
    "ValueAgreed": "the workers agree on {key}: {value}",
    "LoopLeft": "{worker} left loop {loop} before its end, after step {step}",
    "TrainingEnded": "{worker} ended its training after {step} steps",
    "AssignmentChanged": "{moved} parts of {dataset} moved from step {step} on: {reason}",
    "EpochAdvanced": "{task} begins epoch {epoch} of {dataset}: {reason}",
    "LeaseGranted": "{worker} may train shard {shard} of {dataset}",
    "LeaseReturned": "{worker} gave shard {shard} back, consumed {consumed}: {reason}",
    "BarrierOpened": "barrier {barrier} opened for {expected} workers",
    "BarrierArrived": "{worker} arrived at barrier {barrier}",
    "BarrierReleased": "barrier {barrier} released {participants} workers: {reason}",
    "BarrierFailed": "barrier {barrier} failed, missing {missing}: {reason}",
    "CheckpointRequested": "a checkpoint of {task} was asked for: {reason}",
    "CheckpointPostponed": "worker {worker} did not save step {step} of {task}: {reason}",
    "CheckpointScheduled": "everyone saves step {step} of {task}",
    "ExchangeBroken": "{worker} could not exchange with the others: {reason}",
    "PaceMeasured": "lanes of {dataset} are shared anew: {reason}",
    "RecoveryRefused": "{worker} could not have {source}: {reason}",
    "StorageUnreachable": "{worker} cannot reach checkpoint {checkpoint}: {reason}",
    "StorageReached": "{task} waited {waited_s} for storage: {reason}",
    "SampleSkipped": "skipped row {row} of {dataset} in {file}: {reason}",
    "CheckpointStarted": "{worker} began checkpoint {checkpoint} at step {step}",
    "CheckpointPartAcked": "rank {rank} ({worker}) has its part of {checkpoint} on disk",
    "CheckpointSealed": "every part of {checkpoint} is on disk",
    "CheckpointCommitted": "checkpoint {checkpoint} of step {step} is complete in {path}: "
    "{size_bytes} written, {kept_bytes} unchanged, after {took_s}",
    "CheckpointFailed": "checkpoint {checkpoint} failed, ranks missing {missing}: {reason}",
    "CheckpointDeleted": "checkpoint {checkpoint} was deleted: {reason}",
    "CheckpointPinned": "{holder} reads checkpoint {checkpoint}",
    "CheckpointReleased": "{holder} is done with checkpoint {checkpoint}",
    "TaskSubmitted": "{task} was submitted",
    "TaskPlaced": "workers of {task} are to be started: {reason}",
    "TaskStateChanged": "{task} went from {before} to {after}: {reason}",
    "EventsMoved": "{events} events of workers of {task} moved to stretch {stretch} beside the log",
    "EventsReleased": "what workers of {task} recorded, {events} events, is in {run} only",
    "RunDeleted": "the archived run {run} was deleted: {reason}",
    "LimitHit": "the limit {limit} of {value} was hit: {reason}",
    "RunStarted": "the process of {worker} began on {hostname} as {role}",
    "RunEnded": "the process ended, {outcome}, after {steps} steps {reason}",
    "CoordinatorStateSeen": "learned: generation {generation}, {phase}, rank {rank}",
    "RequestSubmitted": "asked the coordinator: {type} {barrier}",
    "RequestCompleted": "the coordinator answered {type} {barrier}, ok {ok} {error}",
    "ConnectionChanged": "the way to {peer} is {path} {reason}",
    "NeighborsChanged": "neighbours added {added}, removed {removed}",
    "PeerLatencyChanged": "the way to {peer} takes {latency_s}",
    "BlobAdded": "offers {what} as blob {blob}",
    "BlobUploadStarted": "sends blob {blob} to {to}, attempt {attempt}",
    "BlobUploadCompleted": "sending blob {blob} to {to} ended, ok {ok} {error}",
    "BlobDownloadStarted": "fetches blob {blob} from {source}, attempt {attempt}",
    "BlobDownloadCompleted": "fetching blob {blob} from {source} ended, ok {ok} {error}",
    "MessageSent": "sent {type} {message} to {to}",
    "MessageReceived": "got {type} {message} from {sender}",
    "MessageRejected": "did not take {type} {message} from {sender}: {reason}",
    "BatchesAssigned": "is to train {samples} samples of each batch from {first_batch} up to "
    "{last_batch}",
    "DatasetOpenStarted": "opens dataset {dataset} at {source}",
    "DatasetOpenCompleted": "opening dataset {dataset} ended after {took_s}, ok {ok} {error}",
    "BatchDownloadRequested": "asks for {source}, {size_bytes}, attempt {attempt}",
    "BatchDownloadStarted": "fetches {source}, {size_bytes}, after {queued_s} in the queue",
    "BatchDownloadProgress": "has {done_bytes} of a file of batch {batch}",
    "BatchDownloadCompleted": "fetching {source} ended after {took_s}, ok {ok} {error}",
    "TrainingStarted": "began to train batch {batch}",
    "TrainingFinished": "trained batch {batch}, loss {loss}",
    "ResultDeserializeStarted": "decodes the result of batch {batch}",
    "ResultDeserializeCompleted": "decoding the result of {batch} ended, ok {ok} {error}",
    "ResultsApplied": "applied the results of batches {batches}",
    "ParametersRequested": "asked {peer} for the model, ok {ok} {error}",
    "CheckpointDownloadStarted": "fetches checkpoint {checkpoint}",
    "CheckpointDownloadCompleted": "fetching checkpoint {checkpoint} ended, ok {ok} {error}",
    "ModelLoadStarted": "loads the model {checkpoint}",
    "ModelLoadCompleted": "loading the model ended, ok {ok} {error}",
    "ModelSerializationStarted": "copies the model out for {checkpoint}",
    "ModelSerializationCompleted": "copying the model ended, ok {ok} {error}",
    "CheckpointWriteStarted": "writes its part of {checkpoint}",
    "CheckpointWriteCompleted": "writing {checkpoint} ended, ok {ok} {error}",
    "CheckpointUploadStarted": "uploads its part of {checkpoint}",
    "CheckpointUploadCompleted": "uploading {checkpoint} ended, ok {ok} {error}",
    "StepFinished": "finished step {step}: data {data_s}, compute {compute_s}, "
    "communication {communication_s}, wait {wait_s}, loss {loss}",
    "ResourceSnapshot": "uses {cpu_percent} % CPU and {memory_used_bytes} of memory",
    "ClockSampled": "the coordinator's clock is {offset_ns} ahead",
    "EventsDropped": "{count} events were lost before they were recorded: {reason}",
    "LogLine": "{level}: {message}",
}


def sentence(record: Record) -> str:
    """What a record says, in one line."""
    template = TEMPLATES.get(record.kind) if record.known else None
    fields = record.fields()
    if template is None:
        text = f"{record.kind}: {_listed(fields)}" if fields else record.kind
    else:
        text = _filled(template, fields)
    text = " ".join(text.split()).rstrip(": ").replace(", loss –", "").removesuffix(" up to")
    return shortened(text.replace(" with a model at step -1", " without a model"))


def _filled(template: str, fields: Mapping[str, object]) -> str:
    parts = []
    for text, name, _, _ in Formatter().parse(template):
        parts.append(text)
        if name is not None:
            parts.append(_measured(name, fields.get(name)))
    return "".join(parts)


def _listed(fields: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {shown(value)}" for name, value in fields.items())


def _measured(name: str, value: object) -> str:
    """A field in the unit that its name ends with, as people read it."""
    if isinstance(value, int) and name.endswith("_ns"):
        return seconds(value)
    if isinstance(value, int | float) and name.endswith("_s"):
        return lasting(value)
    if isinstance(value, int) and name.endswith("_bytes"):
        return f"{value / 1e6:,.1f} MB" if value >= 100_000 else f"{value / 1e3:,.1f} kB"
    return shown(value)


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


def counted(number: int, noun: str) -> str:
    """A number of things, in the right number."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
