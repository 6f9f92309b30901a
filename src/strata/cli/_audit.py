"""An audit in words: the verdict, what it rests on, and what is wrong."""

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli._look import count, plain

FEW = 12
VERDICTS = {
    "kept": ("✓", "green", "each sample was applied exactly once per epoch"),
    "unproven": ("?", "yellow", "nothing contradicts the promise, but records are missing"),
    "broken": ("✗", "red", "the promise is broken"),
}


class Epoch(Struct, frozen=True):
    """How often the samples of an epoch, or of a part of a mixture, were applied."""

    epoch: int
    due: int
    once: int
    missing: int
    twice: int
    part: int


class Worker(Struct, frozen=True):
    """What one worker trained of what counts."""

    worker: str
    steps: int
    samples: int


class Finding(Struct, frozen=True):
    """Steps of a worker, and what is wrong with them."""

    worker: str
    first: int
    last: int
    what: str


class Feed(Struct, frozen=True):
    """The audit of one dataset."""

    dataset: str
    samples: int
    steps: int
    proven: int
    skipped: int
    epochs: list[Epoch]
    workers: list[Worker]
    findings: list[Finding]
    unit: str = "step"


class Voided(Struct, frozen=True):
    """Steps that a rollback undid."""

    attempt: int
    first: int
    stop: int
    reason: str


class Effective(Struct, frozen=True):
    """Seconds of training that counts, and of the whole task."""

    productive_s: float
    total_s: float


class Audit(Struct, frozen=True):
    """The audit of a task, as the coordinator tells it."""

    task: str
    verdict: str
    attempts: int
    voided: list[Voided]
    feeds: list[Feed]
    effective: Effective


def show(out: Console, found: Audit) -> None:
    """The verdict and a line for each dataset."""
    glyph, style, words = VERDICTS[found.verdict]
    out.print(Text.assemble((f"{glyph} audit", style), f"  {plain(found.task)}: {words}"))
    for feed in found.feeds:
        once = sum(epoch.once for epoch in feed.epochs)
        missing = sum(epoch.missing for epoch in feed.epochs)
        twice = sum(epoch.twice for epoch in feed.epochs)
        counted = f"{count(once)} samples once, {count(missing)} missing, {count(twice)} twice"
        left_out = f", {count(feed.skipped)} left out as unreadable" if feed.skipped else ""
        proof = f"{count(feed.proven)} of {count(feed.steps)} steps proven by the workers' records"
        if feed.unit == "shard":
            proof = f"{count(feed.steps)} shards, each trained as its holder said"
        line = f"  {plain(feed.dataset)}: {counted}{left_out}; {proof}"
        out.print(Text(line, style="dim"), soft_wrap=True)
    spent = found.effective
    if spent.total_s:
        share = f"{100 * spent.productive_s / spent.total_s:.0f} %"
        line = f"  effective training time: {share} of {spent.total_s:.1f} s"
        out.print(Text(line, style="dim"))
    for void in found.voided[:FEW]:
        steps = f"steps {count(void.first)} to {count(void.stop - 1)} of attempt {void.attempt}"
        line = f"  {steps} were rolled back and trained again: {plain(void.reason)}"
        out.print(Text(line, style="dim"), soft_wrap=True)
    for feed in found.feeds:
        for finding in feed.findings[:FEW]:
            steps = f"steps {count(finding.first)} to {count(finding.last)}"
            line = f"  {plain(finding.worker)}: {finding.what} in {steps}"
            out.print(Text(line, style=style), soft_wrap=True)


def show_tables(out: Console, found: Audit) -> None:
    """Epochs and workers, for those who want to see the figures."""
    for feed in found.feeds:
        epochs = Table(box=None, header_style="dim", pad_edge=False)
        for name in ("epoch", "due", "once", "missing", "twice"):
            epochs.add_column(name, justify="right")
        if len(feed.epochs) > FEW:
            epochs.title, epochs.title_justify = (
                f"the last {FEW} of {len(feed.epochs)} epochs",
                "left",
            )
        for epoch in feed.epochs[-FEW:]:
            which = str(epoch.epoch) if epoch.epoch >= 0 else f"part {epoch.part}"
            figures = (epoch.due, epoch.once, epoch.missing, epoch.twice)
            epochs.add_row(which, *map(count, figures))
        workers = Table(box=None, header_style="dim", pad_edge=False)
        workers.add_column("worker")
        workers.add_column(f"{feed.unit}s", justify="right")
        workers.add_column("samples", justify="right")
        for worker in feed.workers[:FEW]:
            workers.add_row(plain(worker.worker), count(worker.steps), count(worker.samples))
        for table in (epochs, workers):
            if table.row_count:
                out.print()
                out.print(table)
