"""What an audit found, and the sentences that say it.

The sentences are made here, so that the terminal, the page and REST clients read the same words.
"""

from typing import Literal, TypeAlias

from msgspec import Struct, field

from strata.timeline.effective import Effective
from strata.timeline.lineage import Voided
from strata.timeline.tallies import EpochAudit
from strata.timeline.words import counted

Verdict: TypeAlias = Literal["proven", "broken", "unproven"]
FeedVerdict: TypeAlias = Literal["proven", "broken", "unproven", "not trained"]
Problem: TypeAlias = Literal[
    "no record", "not applied", "other samples", "applied twice", "not assigned"
]
"""`not applied`: the batch was handed out, and no record says that its step was applied."""


class Finding(Struct, frozen=True):
    """Steps `first` to `last` of a worker, and what is wrong with its records of them."""

    worker: str
    generation: int
    first: int
    last: int
    what: Problem


class WorkerAudit(Struct):
    """What one worker owned of the applied steps; shards where those were leased."""

    worker: str
    steps: int = 0
    samples: int = 0


class FeedAudit(Struct):
    """The audit of one dataset; `steps` are shards where those were leased.

    `proven`, `unproven` and `contradicted` add up to `steps`. `by_mean` counts the shares of lost
    workers that are proven by the mean which the others applied. `unused` are steps of loops that
    the script opened and of which, by the workers' records, no batch was applied.
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
    findings: list[Finding] = field(default_factory=list)


class Audit(Struct, kw_only=True):
    """The audit of a task.

    `bare` are applied steps that trained no dataset. `damaged` names records that cannot be read.
    `effective` is null where facts are damaged: then it is not known what counts.
    """

    task: str
    verdict: Verdict
    summary: str
    committed: int
    attempts: int
    bare: int = 0
    voided: list[Voided]
    damaged: list[str] = field(default_factory=list)
    feeds: list[FeedAudit]
    effective: Effective | None


def judge(feed: FeedAudit) -> None:
    """Fills in the verdict on one dataset, and what it rests on."""
    feed.verdict = _feed_verdict(feed)
    feed.summary = _feed_words(feed)


def verdict_of(feeds: list[FeedAudit], damaged: list[str]) -> Verdict:
    """The verdict on a task: the worst of its datasets'. Without an applied step it is unproven."""
    found = {feed.verdict for feed in feeds}
    if "broken" in found:
        return "broken"
    return "unproven" if damaged or "unproven" in found or "proven" not in found else "proven"


def lost_words(first: int, stop: int) -> str:
    """That facts of the coordinator were lost."""
    return f"the coordinator's facts @{first} to @{stop - 1} were lost when the log was damaged"


def words_of(feeds: list[FeedAudit], verdict: Verdict, damaged: list[str]) -> str:
    """What was compared and found, in one sentence."""
    trained = [feed for feed in feeds if feed.verdict != "not trained"]
    if damaged and verdict == "unproven":
        return f"records are damaged and cannot be compared: {damaged[0]}"
    if not trained:
        return "no step of a dataset was applied, so there is nothing to compare"
    if len(trained) == 1:
        return trained[0].summary
    if verdict == "proven":
        return (
            f"every worker's samples of all applied steps of {len(trained)} datasets are recorded, "
            "and they are those of the order; each sample once per epoch"
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
            f"{counted(feed.steps, 'shard')} trained by the workers' word alone: they returned "
            "each as trained, and record no applied steps to compare"
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
        shared = f", {feed.by_mean:,} by the mean that the others applied"
    steps = counted(feed.steps, "applied step")
    return (
        f"every worker's samples of all {steps} are recorded{shared}, and they are those of the "
        f"order; {often}"
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
