"""Why was this checkpoint not committed; and which one did this worker load, and why that one?"""

from msgspec import Struct

from strata.core.checkpoints import CheckpointStarted
from strata.core.recovery import RecoveryChosen
from strata.timeline.records import SECOND_NS, Record
from strata.timeline.states import state_at
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, Link, link, lost_s
from strata.timeline.words import counted, seconds

ENDS = frozenset({"CheckpointCommitted", "CheckpointFailed"})
WORK = frozenset({"CheckpointWriteStarted", "CheckpointWriteCompleted", "CheckpointUploadStarted"})
WORK_ENDS = frozenset({"CheckpointWriteCompleted", "CheckpointUploadCompleted"})
RANKS = 8
LONGEST_NS = 3_600 * SECOND_NS


def checkpoint(case: Case, checkpoint: str, task: str = "") -> Answer:
    """Was it committed; if not, the first missing link, by rank."""
    begun = case.require(
        case.last({CheckpointStarted.__name__}, checkpoint=checkpoint, task=task),
        f"checkpoint {checkpoint}",
    )
    body = begun.event.body
    assert isinstance(body, CheckpointStarted)
    ended = case.first(ENDS, begun.at_ns, checkpoint=checkpoint, task=body.task)
    acked = case.all({"CheckpointPartAcked"}, begun.at_ns, checkpoint=checkpoint, task=body.task)
    if ended is not None and ended.kind == "CheckpointCommitted":
        took_ns = ended.at_ns - begun.at_ns
        text = f"yes: it was committed {seconds(took_ns)} after it began"
        return Answer("yes", text, [link(begun), link(ended)])
    there = {each.get("rank") for each in acked}
    missing = [rank for rank in range(body.expected) if rank not in there]
    parts = [_part(case, begun, body, rank) for rank in missing[:RANKS]]
    chain = [link(begun), *(link(record) for part in parts for record in part.records)]
    verdict = _verdict(case, begun, ended, parts)
    why = parts[0].text if parts else "every part was written and no manifest followed"
    if ended is not None:
        chain += [*case.ancestry(ended)]
        why = f"{why}; {ended.text('reason')}"
    spent_s = lost_s(begun.at_ns, chain[-1].record.at_ns)
    text = f"{counted(body.expected, 'worker')} wrote a checkpoint that cannot be used"
    findings = [part.text for part in parts]
    cost = Cost(spent_s, body.expected, text)
    return Answer(verdict, f"{verdict}: {why}", _distinct(chain), cost, findings)


class _Part(Struct, frozen=True):
    """How far a rank got with its part; not `known` where its log has a hole there."""

    records: list[Record]
    text: str
    known: bool = True


def _verdict(case: Case, begun: Record, ended: Record | None, parts: list[_Part]) -> Verdict:
    if ended is not None:
        return "no"
    if not all(part.known for part in parts):
        return "unknown"
    state = state_at(case.timeline, case.timeline.position).state
    task = state.tasks.get(begun.text("task"))
    return "no" if task is None or task.ended else "open"


def _part(case: Case, begun: Record, body: CheckpointStarted, rank: int) -> _Part:
    """How far one rank got: not begun, not written, written and not acknowledged, or lost."""
    state = state_at(case.timeline, begun.event.seq + 1).state
    members = state.tasks[body.task].members
    worker = members[rank] if rank < len(members) else ""
    who = f"rank {rank} ({worker})" if worker else f"rank {rank}"
    if not worker:
        return _Part([], f"{who} did not acknowledge: nobody had that rank", known=False)
    incarnation = state.workers[worker].incarnation
    until_ns = begun.at_ns + LONGEST_NS
    mine = case.all(
        WORK | WORK_ENDS, begun.at_ns - 60 * SECOND_NS, until_ns, worker, checkpoint=body.checkpoint
    )
    gone = _end_of(case, worker, incarnation, begun.at_ns)
    written = next((each for each in mine if each.kind in WORK_ENDS), None)
    if gone is not None and (written is None or written.at_ns > gone.at_ns):
        return _Part([*mine, gone], f"{who} was lost before its part was on disk")
    if written is not None and written.get("ok") is False:
        return _Part(mine, f"{who} could not write its part: {written.text('error')}")
    if written is not None:
        return _Part(mine, f"{who} wrote its part, but the coordinator did not hear of it")
    if mine:
        return _Part(mine, f"{who} began to write its part and did not finish")
    holes = case.holes(worker, begun.at_ns, case.extent.to_ns)
    if holes:
        text = f"{who} did not acknowledge; how far it got is unknown: {holes[0]}"
        return _Part([], text, known=False)
    return _Part([], f"{who} never began to write its part")


def _end_of(case: Case, worker: str, incarnation: int, since_ns: int) -> Record | None:
    """How an incarnation ended after a moment: declared lost, or seen to exit by its agent."""
    lost = case.first({"WorkerLost"}, since_ns, worker=worker, incarnation=incarnation)
    exited = case.exit_of(worker, incarnation)
    ends = [each for each in (lost, exited) if each is not None and each.at_ns >= since_ns]
    return min(ends, key=lambda each: each.key, default=None)


def _distinct(chain: list[Link]) -> list[Link]:
    seen = {each.record.key: each for each in chain}
    return sorted(seen.values(), key=lambda each: each.record.key)


def restored(case: Case, task: str = "", worker: str = "", generation: int | None = None) -> Answer:
    """Which checkpoint was loaded, which were candidates, and why that one?"""
    if worker and not task:
        joined = case.require(case.last({"WorkerRegistered"}, worker=worker), f"worker {worker}")
        task = joined.text("task")
    chosen = case.require(
        case.last({RecoveryChosen.__name__}, task=task, generation=generation),
        f"recovery of {task or 'any task'}",
    )
    body = chosen.event.body
    assert isinstance(body, RecoveryChosen)
    named = ", ".join(f"{name} at step {step}" for name, step in body.candidates.items())
    source = {
        "peer": f"the model of {body.worker}",
        "checkpoint": f"checkpoint {body.checkpoint}",
        "fresh": "nothing: a fresh start",
    }[body.source]
    text = f"yes: generation {body.generation} went on at step {body.step} from {source}: "
    chain = case.ancestry(chosen)
    loads = case.all(
        {"CheckpointDownloadStarted", "ModelLoadStarted", "ParametersRequested"},
        chosen.at_ns,
        chosen.at_ns + 600 * SECOND_NS,
        worker or None,
    )
    chain += [link(record) for record in loads[:4]]
    findings = [f"candidates: {named or 'none'}"]
    if worker and not loads and body.source != "fresh":
        holes = case.holes(worker, chosen.at_ns, chosen.at_ns + 600 * SECOND_NS)
        findings.append(
            f"whether {worker} loaded it is unknown: {holes[0]}"
            if holes
            else f"{worker} loaded nothing: it held that model already"
        )
    return Answer("yes", f"{text}{body.reason}", chain, Cost(), findings)
