"""Why did the coordinator not act on a worker's request?"""

from strata.timeline.records import SECOND_NS, Record
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, link
from strata.timeline.words import seconds


def request(case: Case, worker: str, request: int) -> Answer:
    """Was it answered, and if not: never sent, coordinator away, worker fenced, or still open?"""
    asked = case.require(
        case.last({"RequestSubmitted"}, node=worker, request=request),
        f"request {request} of {worker}",
    )
    done = case.first({"RequestCompleted"}, asked.at_ns, node=worker, request=request)
    chain = [link(asked)]
    if done is not None:
        took_ns = done.event.mono_ns - asked.event.mono_ns
        cost = Cost(took_ns / SECOND_NS, 1, f"{worker} waited {seconds(took_ns)}")
        ok = done.get("ok") is True
        verb = "answered" if ok else f"refused ({done.text('error')})"
        verdict: Verdict = "yes" if ok else "no"
        text = f"{verdict}: it was {verb} after {seconds(took_ns)}"
        return Answer(verdict, text, [*chain, link(done)], cost)
    for record in _obstacles(case, asked, worker):
        text = f"no: {link(record).text} before it was answered"
        return Answer("no", text, [*chain, link(record)])
    holes = case.holes(worker, asked.at_ns, case.extent.to_ns)
    if holes:
        return Answer("unknown", f"unknown: {holes[0]}", chain)
    waited_ns = case.extent.to_ns - asked.at_ns
    return Answer("open", f"open: it has waited for {seconds(waited_ns)}", chain)


def _obstacles(case: Case, asked: Record, worker: str) -> list[Record]:
    """What kept the coordinator from answering."""
    kinds = {"WorkerLost", "WorkerFenced", "CoordinatorStarted", "WorkerExited"}
    found = case.all(kinds, asked.at_ns, asked.at_ns + 600 * SECOND_NS)
    return [r for r in found if r.kind == "CoordinatorStarted" or r.text("worker") == worker]
