"""Where does this run first differ from that one, and can this log be trusted?"""

from strata.timeline.comparing import first_difference
from strata.timeline.opening import open_timeline
from strata.timeline.trust import Verdict
from strata.timeline.why.case import Answer, Case, Cost, link
from strata.timeline.words import counted


def differs(case: Case, other: str) -> Answer:
    """Do they differ, and where first?"""
    with open_timeline(other) as theirs:
        found = first_difference(case.timeline, theirs)
    chain = [link(record) for record in (found.shared, found.left) if record is not None]
    verdict: Verdict = "no" if found.left is None and found.right is None else "yes"
    return Answer(verdict, f"{verdict}: {found.text}", chain)


def trusted(case: Case) -> Answer:
    """Gaps, drops, damage, clocks, unknown kinds, more than one run."""
    trust = case.trust
    findings = [finding.text for finding in trust.findings]
    grave = [finding.text for finding in trust.findings if finding.grave]
    if not grave:
        remarks = f", with {counted(len(findings), 'remark')}" if findings else ""
        return Answer("yes", f"yes: nothing is missing{remarks}", [], Cost(), findings)
    text = f"no, not everywhere: {grave[0]}"
    more = f", and {counted(len(grave) - 1, 'more finding')}" if len(grave) > 1 else ""
    return Answer("no", f"{text}{more}", [], Cost(), findings)
