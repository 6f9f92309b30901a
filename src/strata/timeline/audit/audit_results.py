"""Results of an audit, with their sentences; the same for the terminal, the page and REST.

Imports neither NumPy nor the rules, so that the command line reads an audit quickly.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.timeline.goodput.goodput_answers import TimeClass
from strata.timeline.read.sentences import counted

AuditVerdict: TypeAlias = Literal["proven", "broken", "unproven"]
FeedVerdict: TypeAlias = Literal["proven", "broken", "unproven", "not trained"]
Problem: TypeAlias = Literal[
    "no record", "not applied", "other samples", "applied twice", "not assigned"
]
"""`not applied`: the worker got the batch, but did not record that it applied the step."""


class AuditFinding(Struct, frozen=True):
    """A problem with a worker's records of the steps `first` to `last`."""

    worker: str
    generation: int
    first: int
    last: int
    what: Problem


class WorkerAudit(Struct):
    """How much one worker owned of the applied steps, or of the leased shards."""

    worker: str
    steps: int = 0
    samples: int = 0


class EpochAudit(Struct, frozen=True):
    """How often the samples of an epoch were applied; `due` of them should have been by now.

    `once`: in one applied step, proven by the worker's record. `unproven`: in one step, without
    such a record. `missing`: in no step. `twice`: in several steps. `left`: not due, because the
    script left a loop early. For leased shards `once` is what the workers reported.

    A mixture has no epochs of its own: each row has the number -1 and counts all applications of
    one of its datasets, number `part`.
    """

    epoch: int
    due: int
    once: int
    missing: int
    twice: int
    part: int = 0
    unproven: int = 0
    left: int = 0


class Voided(Struct, frozen=True):
    """Committed steps that a rollback undid."""

    attempt: int
    first: int
    stop: int
    reason: str


class Effective(Struct, frozen=True):
    """Worker-seconds from the ledger (`timeline/goodput`): productive ones, all of them, and all by
    class (`TimeClass`), each class if there was any; they add up to `total_s`.
    """

    productive_s: float
    total_s: float
    seconds: dict[TimeClass, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """The productive part of the time."""
        return self.productive_s / self.total_s if self.total_s else 0.0


class FeedAudit(Struct):
    """The audit of one dataset; `steps` counts shards if they were leased.

    `proven`, `unproven` and `contradicted` add up to `steps`. `by_mean` counts the shares of lost
    workers that are proven by the mean that the other workers applied. `unused` counts steps of
    loops of which, by the workers' records, no batch was applied. `skipped` counts unreadable rows.
    """

    dataset: str
    samples: int
    steps: int = 0
    proven: int = 0
    unproven: int = 0
    contradicted: int = 0
    by_mean: int = 0
    unused: int = 0
    skipped: int = 0
    unit: Literal["step", "shard"] = "step"
    verdict: FeedVerdict = "unproven"
    summary: str = ""
    epochs: list[EpochAudit] = field(default_factory=list)
    workers: list[WorkerAudit] = field(default_factory=list)
    findings: list[AuditFinding] = field(default_factory=list)


class Audit(Struct, kw_only=True):
    """The audit of a task.

    `bare` counts applied steps that trained no dataset. `damaged` names records that cannot be
    read. `effective` is null if facts are damaged: which steps are in the model is then unknown.
    """

    task: str
    verdict: AuditVerdict
    summary: str
    committed: int
    attempts: int
    bare: int = 0
    voided: list[Voided]
    damaged: list[str] = field(default_factory=list)
    feeds: list[FeedAudit]
    effective: Effective | None


def judge(feed: FeedAudit) -> None:
    """Fill in the verdict and the summary of one dataset."""
    feed.verdict = _feed_verdict(feed)
    feed.summary = _feed_words(feed)


def verdict_of(feeds: list[FeedAudit], damaged: list[str]) -> AuditVerdict:
    """The verdict on a task: the worst of its datasets; `unproven` without an applied step."""
    found = {feed.verdict for feed in feeds}
    if "broken" in found:
        return "broken"
    return "unproven" if damaged or "unproven" in found or "proven" not in found else "proven"


def lost_words(first: int, stop: int) -> str:
    """The sentence for lost facts of the coordinator."""
    return f"the coordinator's facts @{first} to @{stop - 1} were lost when the log was damaged"


def words_of(feeds: list[FeedAudit], verdict: AuditVerdict, damaged: list[str]) -> str:
    """The summary of a task's audit."""
    trained = [feed for feed in feeds if feed.verdict != "not trained"]
    if damaged and verdict == "unproven":
        return f"records are damaged and cannot be compared: {damaged[0]}"
    if not trained:
        return "no step of a dataset was applied, so there is nothing to compare"
    if len(trained) == 1:
        return trained[0].summary
    if verdict == "proven":
        return (
            f"every worker recorded its samples of all applied steps of {len(trained)} datasets, "
            "and they match the order; each sample once per epoch"
        )
    named = [feed.dataset for feed in trained if feed.verdict == verdict]
    return f"{verdict} for {', '.join(named)}"


def _feed_verdict(feed: FeedAudit) -> FeedVerdict:
    wrong = any(epoch.missing or epoch.twice for epoch in feed.epochs)
    if wrong or feed.contradicted:
        return "broken"
    if not feed.steps:
        return "not trained"
    return "unproven" if feed.unproven or feed.unit == "shard" else "proven"


def _feed_words(feed: FeedAudit) -> str:
    if feed.verdict == "broken":
        return _broken_words(feed)
    if feed.verdict == "not trained":
        return "no worker applied a batch of it" if feed.unused else "no step of it was applied"
    if feed.unit == "shard":
        return (
            f"{counted(feed.steps, 'shard')} trained, as the workers reported: leased shards leave "
            "no records of applied steps to compare"
        )
    if feed.verdict == "unproven":
        return (
            f"{feed.proven:,} of {counted(feed.steps, 'applied step')} proven; for the others a "
            "worker's record is missing"
        )
    often = "each sample as often as the mixture says"
    if all(epoch.epoch >= 0 for epoch in feed.epochs):
        often = "each sample once per epoch"
    shared = ""
    if feed.by_mean:
        shared = f" ({feed.by_mean:,} by the mean that other workers applied)"
    steps = counted(feed.steps, "applied step")
    return (
        f"every worker recorded its samples of all {steps}{shared}, and they match the order; "
        f"{often}"
    )


def _broken_words(feed: FeedAudit) -> str:
    missing = sum(epoch.missing for epoch in feed.epochs)
    twice = sum(epoch.twice for epoch in feed.epochs)
    found = [f"{counted(missing, 'sample')} missing"] if missing else []
    found += [f"{counted(twice, 'sample')} applied more than once"] if twice else []
    if feed.contradicted:
        steps = counted(feed.contradicted, "applied step")
        found.append(f"in {steps} a worker's record contradicts the order")
    return "; ".join(found)
