"""Where do two runs first differ, and can this log be trusted?"""

from collections.abc import Iterable, Iterator

from strata.core.record.record_retention import EventsReleased
from strata.core.tasks.continuation import changes
from strata.core.workers.worker_facts import TrainingFinished
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered
from strata.errors import NotFound, StrataError
from strata.store import seq_ranges
from strata.store.event_store import Range
from strata.timeline.answers import FindingAnswer, Verdict
from strata.timeline.archive.run_lookup import open_timeline
from strata.timeline.audit.audit_results import AuditFinding, Problem
from strata.timeline.audit.sample_audit import audit
from strata.timeline.read.branches import difference_after, parting
from strata.timeline.read.differences import Difference, first_difference
from strata.timeline.read.past_states import state_at
from strata.timeline.read.sentences import counted
from strata.timeline.why.investigation import Answer, LogSearch, link

MISSING: tuple[Problem, ...] = ("no record", "not applied")
"""Problems of the audit that mean a missing record."""


def differs(search: LogSearch, other: str, task: str = "") -> Answer:
    """Do the runs differ, and where first? With `task`: two tasks of one tree, from their fork."""
    if task:
        return _siblings(search, task, other)
    with open_timeline(other) as theirs:
        found = first_difference(search.timeline, theirs)
    return _difference(found, found.text)


def _siblings(search: LogSearch, task: str, other: str) -> Answer:
    parted = parting(search.timeline, task, other)
    found = difference_after(search.timeline, parted)
    same = "both did the same" if found.left is None and found.right is None else found.text
    at = f"common up to step {parted.step} of {parted.task} ({parted.checkpoint}), the fork point"
    state = state_at(search.timeline, search.timeline.position).state
    specs = [state.tasks[each].spec for each in (task, other) if each in state.tasks]
    changed = changes(*specs) if len(specs) == 2 else {}
    return _difference(
        found,
        f"{at}; from there on, {same}",
        [f"{name}: {old or '–'} here, {new or '–'} there" for name, (old, new) in changed.items()],
    )


def _difference(found: Difference, text: str, findings: Iterable[str] = ()) -> Answer:
    chain = [link(record) for record in (found.shared, found.left) if record is not None]
    verdict: Verdict = "no" if found.left is None and found.right is None else "yes"
    return Answer(verdict=verdict, text=f"{verdict}: {text}", chain=chain, findings=list(findings))


def trusted(search: LogSearch) -> Answer:
    """Is the log complete: gaps, drops, damage, clocks, unknown kinds, missing audit records?"""
    findings = [*_unproven(search), *search.trust.findings]
    grave = [finding.text for finding in findings if finding.grave]
    texts = [finding.text for finding in findings]
    if not grave:
        remarks = f", with {counted(len(texts), 'remark')}" if texts else ""
        return Answer(
            verdict="yes",
            text=f"yes: the log is complete{remarks}",
            findings=texts,
        )
    more = f", and {counted(len(grave) - 1, 'more finding')}" if len(grave) > 1 else ""
    return Answer(verdict="no", text=f"no: {grave[0]}{more}", findings=texts)


def _unproven(search: LogSearch) -> Iterator[FindingAnswer]:
    """Findings on applied steps without a worker's record, in tasks that lost workers or events."""
    for task in sorted(_incomplete_tasks(search)):
        try:
            found = audit(search.timeline.reader, task)
        except NotFound:
            continue  # the task trained nothing
        except StrataError as error:
            yield FindingAnswer(kind="audit", text=f"the audit of {task} failed: {error.message}")
            continue
        lanes = [feed for feed in found.feeds if feed.unit == "step"]
        missing = [each for feed in lanes for each in feed.findings if each.what in MISSING]
        coming = [each for each in missing if _may_come(search, each)]
        if coming:
            text = (
                f"{coming[0].worker} has not sent its records of {_steps(coming[0])} of {task} yet"
            )
            yield FindingAnswer(kind="audit", text=text, node=coming[0].worker, grave=False)
        missing = [each for each in missing if each not in coming]
        if not missing:
            continue
        first, which = missing[0], _steps(missing[0])
        number = _count_steps(missing) if coming else sum(feed.unproven for feed in lanes)
        steps = counted(number, "applied step")
        text = f"{steps} of {task} cannot be proven: the record of {first.worker} for {which}"
        others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield FindingAnswer(
            kind="audit", text=f"{text}{others} did not arrive or cannot be read", node=first.worker
        )


def _count_steps(findings: list[AuditFinding]) -> int:
    covered: list[Range] = []
    for each in findings:
        seq_ranges.add(covered, each.first, each.last + 1)
    return sum(stop - first for first, stop in covered)


def _steps(finding: AuditFinding) -> str:
    if finding.first == finding.last:
        return f"step {finding.first}"
    return f"steps {finding.first} to {finding.last}"


def _may_come(search: LogSearch, finding: AuditFinding) -> bool:
    """Whether a worker that is alive where the log ends has recorded no later step.

    Records arrive later than the heartbeats that commit the steps.
    """
    timeline = search.timeline
    worker = state_at(timeline, timeline.position).state.workers.get(finding.worker)
    if not timeline.live or worker is None or not worker.alive:
        return False
    last = search.last({TrainingFinished.__name__}, node=finding.worker)
    body = last.event.body if last is not None else None
    if not isinstance(body, TrainingFinished):
        return False
    batch = body.batch.rpartition("/")[2]  # its step in the dataset, where that is another one
    return finding.first > max(body.step, int(batch) if batch.isdecimal() else 0)


def _incomplete_tasks(search: LogSearch) -> set[str]:
    """The tasks that lost a worker or worker events.

    Without those whose events are in an archived run: that run has its own audit.
    """
    tasks = {each.text("task") for each in search.all({WorkerLost.__name__})}
    nodes = {finding.node for finding in search.trust.findings if finding.grave and finding.node}
    joined = search.all({WorkerRegistered.__name__}) if nodes else []
    tasks |= {each.text("task") for each in joined if each.text("worker") in nodes}
    return tasks - {each.text("task") for each in search.all({EventsReleased.__name__})}
