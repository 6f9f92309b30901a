"""Where does this run first differ from that one, and can this log be trusted?"""

from collections.abc import Iterator

from strata.core.keeping import EventsReleased
from strata.core.workers import WorkerLost, WorkerRegistered
from strata.errors import NotFound, StrataError
from strata.timeline.audit import audit
from strata.timeline.audit_results import Problem
from strata.timeline.comparing import first_difference
from strata.timeline.opening import open_timeline
from strata.timeline.trust import Finding, Verdict
from strata.timeline.why.case import Answer, Case, link
from strata.timeline.words import counted

MISSING: tuple[Problem, ...] = ("no record", "not applied")
"""What the audit says of steps of which a worker's record is missing."""


def differs(case: Case, other: str) -> Answer:
    """Do they differ, and where first?"""
    with open_timeline(other) as theirs:
        found = first_difference(case.timeline, theirs)
    chain = [link(record) for record in (found.shared, found.left) if record is not None]
    verdict: Verdict = "no" if found.left is None and found.right is None else "yes"
    return Answer(verdict, f"{verdict}: {found.text}", chain)


def trusted(case: Case) -> Answer:
    """Gaps, drops, damage, clocks, unknown kinds, more than one run, and what the audit misses."""
    findings = [*_unproven(case), *case.trust.findings]
    grave = [finding.text for finding in findings if finding.grave]
    texts = [finding.text for finding in findings]
    if not grave:
        remarks = f", with {counted(len(texts), 'remark')}" if texts else ""
        return Answer("yes", f"yes: nothing that was recorded is missing{remarks}", findings=texts)
    more = f", and {counted(len(grave) - 1, 'more finding')}" if len(grave) > 1 else ""
    return Answer("no", f"no, not everywhere: {grave[0]}{more}", findings=texts)


def _unproven(case: Case) -> Iterator[Finding]:
    """Applied steps of which a worker's record is missing, in tasks that lost workers or events."""
    for task in sorted(_incomplete_tasks(case)):
        try:
            found = audit(case.timeline.reader, task)
        except NotFound:
            continue  # it trained nothing
        except StrataError as error:
            yield Finding("audit", f"the audit of {task} cannot be made: {error.message}")
            continue
        lanes = [feed for feed in found.feeds if feed.unit == "step"]
        missing = [each for feed in lanes for each in feed.findings if each.what in MISSING]
        if not missing:
            continue
        steps = counted(sum(feed.unproven for feed in lanes), "applied step")
        first = missing[0]
        which = f"step {first.first}" if first.first == first.last else f"steps {first.first} to "
        which += "" if first.first == first.last else str(first.last)
        text = f"{steps} of {task} cannot be proven: the record of {first.worker} for {which}"
        others = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        yield Finding("audit", f"{text}{others} did not arrive", first.worker)


def _incomplete_tasks(case: Case) -> set[str]:
    """The tasks that lost a worker, or of whose workers events are missing.

    Not those whose events are in an archived run: the log says so, and that run has its own audit.
    """
    tasks = {each.text("task") for each in case.all({WorkerLost.__name__})}
    nodes = {finding.node for finding in case.trust.findings if finding.grave and finding.node}
    joined = case.all({WorkerRegistered.__name__}) if nodes else []
    tasks |= {each.text("task") for each in joined if each.text("worker") in nodes}
    return tasks - {each.text("task") for each in case.all({EventsReleased.__name__})}
