"""Why was this checkpoint not committed; which checkpoint did a worker load, and why?"""

from msgspec import Struct

from strata.core.checkpoints.checkpoint_lifecycle import CheckpointStarted
from strata.core.generations.recovery import RecoveryChosen
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.past_states import state_at
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, seconds
from strata.timeline.why.investigation import Answer, LogSearch, in_order, link, lost_s

ENDS = frozenset({"CheckpointCommitted", "CheckpointFailed"})
WORK = frozenset({"CheckpointWriteStarted", "CheckpointWriteCompleted", "CheckpointUploadStarted"})
WORK_ENDS = frozenset({"CheckpointWriteCompleted", "CheckpointUploadCompleted"})
RANKS = 8
CLOCK_ERROR_NS = SECOND_NS // 20
LONGEST_NS = 3_600 * SECOND_NS


def checkpoint(search: LogSearch, checkpoint: str, task: str = "") -> Answer:
    """Was the checkpoint committed; if not, how far did each rank get?"""
    begun = search.require(
        search.last({CheckpointStarted.__name__}, checkpoint=checkpoint, task=task),
        f"checkpoint {checkpoint}",
    )
    body = begun.event.body
    assert isinstance(body, CheckpointStarted)
    ended = search.first(ENDS, begun.at_ns, checkpoint=checkpoint, task=body.task)
    acked = search.all({"CheckpointPartAcked"}, begun.at_ns, checkpoint=checkpoint, task=body.task)
    if ended is not None and ended.kind == "CheckpointCommitted":
        took_ns = ended.at_ns - begun.at_ns
        text = f"yes: it was committed {seconds(took_ns)} after it started"
        return Answer(verdict="yes", text=text, chain=[link(begun), link(ended)])
    there = {each.get("rank") for each in acked}
    missing = [rank for rank in range(body.expected) if rank not in there]
    parts = [_part(search, begun, ended, rank) for rank in missing[:RANKS]]
    chain = [link(begun), *(link(record) for part in parts for record in part.records)]
    verdict = _verdict(search, begun, ended, parts)
    why = "every part was written, but no manifest"
    if parts:
        why = max(parts, key=lambda part: part.weight).text
    if ended is not None:
        chain += [*search.ancestry(ended)]
        why = f"{why}; {ended.text('reason')}"
    spent_s = lost_s(begun.at_ns, chain[-1].record.at_ns)
    text = f"{counted(body.expected, 'worker')} wrote a checkpoint that cannot be used"
    findings = [part.text for part in parts]
    cost = Cost(spent_s, body.expected, text)
    return Answer(
        verdict=verdict,
        text=f"{verdict}: {why}",
        chain=in_order(chain),
        cost=cost,
        findings=findings,
    )


class _Part(Struct, frozen=True):
    """How far a rank got with its part; not `known` if its log has a hole there, `weight`
    is its weight as the cause of the failure."""

    records: list[Record]
    text: str
    known: bool = True
    weight: int = 0


def _verdict(search: LogSearch, begun: Record, ended: Record | None, parts: list[_Part]) -> Verdict:
    if ended is not None:
        return "no"
    if not all(part.known for part in parts):
        return "unknown"
    state = state_at(search.timeline, search.timeline.position).state
    task = state.tasks.get(begun.text("task"))
    return "no" if task is None or task.ended else "open"


def _part(search: LogSearch, begun: Record, ended: Record | None, rank: int) -> _Part:
    """How far a rank got: not started, not written, not acknowledged, or lost."""
    body = begun.event.body
    assert isinstance(body, CheckpointStarted)
    ended_ns = ended.at_ns if ended is not None else search.extent.to_ns
    state = state_at(search.timeline, begun.event.seq + 1).state
    members = state.tasks[body.task].members
    worker = members[rank] if rank < len(members) else ""
    who = f"rank {rank} ({worker})" if worker else f"rank {rank}"
    if not worker:
        return _Part(
            records=[], text=f"{who} did not acknowledge: no worker had that rank", known=False
        )
    incarnation = state.workers[worker].incarnation
    until_ns = begun.at_ns + LONGEST_NS
    mine = search.all(
        WORK | WORK_ENDS, begun.at_ns - 60 * SECOND_NS, until_ns, worker, checkpoint=body.checkpoint
    )
    gone = _end_of(search, worker, incarnation, begun.at_ns)
    written = next((each for each in mine if each.kind in WORK_ENDS), None)
    gone = gone if gone is not None and gone.at_ns <= ended_ns else None
    if gone is not None and (written is None or written.at_ns > gone.at_ns):
        text = f"{who} was lost before its part was stored"
        return _Part(records=[*mine, gone], text=text, weight=2)
    late = written is not None and written.at_ns > ended_ns + CLOCK_ERROR_NS
    if ended is not None and mine and (written is None or late):
        text = f"{who} was writing its part when the checkpoint failed"
        return _Part(records=mine, text=text)
    if written is not None and written.get("ok") is False:
        text = f"{who} could not write its part: {written.text('error')}"
        return _Part(records=mine, text=text, weight=1)
    if written is not None:
        return _Part(
            records=mine, text=f"{who} wrote its part, but the coordinator got no acknowledgement"
        )
    if mine:
        return _Part(records=mine, text=f"{who} started to write its part and did not finish")
    holes = search.holes(worker, begun.at_ns, search.extent.to_ns)
    if holes:
        text = f"{who} did not acknowledge; how far it got is unknown: {holes[0]}"
        return _Part(records=[], text=text, known=False)
    return _Part(records=[], text=f"{who} never started to write its part")


def _end_of(search: LogSearch, worker: str, incarnation: int, since_ns: int) -> Record | None:
    """The end of an incarnation after a moment: declared lost, or the exit of its process."""
    lost = search.first({"WorkerLost"}, since_ns, worker=worker, incarnation=incarnation)
    exited = search.exit_of(worker, incarnation)
    ends = [each for each in (lost, exited) if each is not None and each.at_ns >= since_ns]
    return min(ends, key=lambda each: each.key, default=None)


def restored(
    search: LogSearch, task: str = "", worker: str = "", generation: int | None = None
) -> Answer:
    """Which checkpoint was loaded, why, and what were the other candidates?"""
    if worker and not task:
        joined = search.require(
            search.last({"WorkerRegistered"}, worker=worker), f"worker {worker}"
        )
        task = joined.text("task")
    chosen = search.require(
        search.last({RecoveryChosen.__name__}, task=task, generation=generation),
        f"recovery of {task or 'any task'}",
    )
    body = chosen.event.body
    assert isinstance(body, RecoveryChosen)
    named = ", ".join(f"{name} at step {step}" for name, step in body.candidates.items())
    source = {
        "peer": f"the model of {body.worker}",
        "checkpoint": f"checkpoint {body.checkpoint}",
        "fresh": "a fresh start",
    }[body.source]
    text = f"yes: generation {body.generation} continued at step {body.step} from {source}: "
    chain = search.ancestry(chosen)
    loads = search.all(
        {"CheckpointDownloadStarted", "ModelLoadStarted", "ParametersRequested"},
        chosen.at_ns,
        chosen.at_ns + 600 * SECOND_NS,
        worker or None,
    )
    chain += [link(record) for record in loads[:4]]
    findings = [f"candidates: {named or 'none'}"]
    if worker and not loads and body.source != "fresh":
        holes = search.holes(worker, chosen.at_ns, chosen.at_ns + 600 * SECOND_NS)
        findings.append(
            f"whether {worker} loaded it is unknown: {holes[0]}"
            if holes
            else f"{worker} loaded nothing: it already had that model"
        )
    return Answer(
        verdict="yes", text=f"{text}{body.reason}", chain=chain, cost=Cost(), findings=findings
    )
