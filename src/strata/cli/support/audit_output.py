"""Output of an audit in the terminal: the verdict, the counts, and the problems."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from strata.cli.support.exit_codes import DONE, FAILED, UNPROVEN
from strata.cli.support.tables import count, plain
from strata.timeline.audit.audit_results import Audit, Effective, FeedAudit
from strata.timeline.goodput.goodput_answers import LABELS

FEW = 12
MOST = 4
VERDICTS = {
    "proven": ("✓", "green"),
    "unproven": ("?", "yellow"),
    "broken": ("✗", "red"),
    "not trained": ("○", "dim"),
}
PROBLEMS = {
    "no record": "has no record of its samples in",
    "not applied": "got its samples but did not record that it applied them in",
    "other samples": "recorded samples that do not match the order in",
    "applied twice": "recorded twice that it applied its samples in",
    "not assigned": "recorded samples that were not assigned to it in",
}
EXIT_CODES = {"proven": DONE, "broken": FAILED, "unproven": UNPROVEN}


def show(out: Console, found: Audit, times: bool = True) -> None:
    """Print the verdict, what was compared, and a line for each dataset; with `times` also the
    effective training time."""
    glyph, style = VERDICTS[found.verdict]
    verdict = (f"{glyph} audit {found.verdict}", style)
    out.print(
        Text.assemble(verdict, f"  {plain(found.task)}: {plain(found.summary)}"), soft_wrap=True
    )
    lines = [_feed_line(feed, several=len(found.feeds) > 1) for feed in found.feeds]
    if found.bare:
        lines.append(f"{count(found.bare)} applied steps trained no dataset: nothing to compare")
    spent = found.effective
    if times and spent is not None and spent.total_s:
        lines.append(_effective_line(spent))
    for void in found.voided[:FEW]:
        steps = f"steps {count(void.first)} to {count(void.stop - 1)} of attempt {void.attempt}"
        lines.append(f"{steps} were rolled back and trained again: {plain(void.reason)}")
    for line in lines:
        out.print(Text(f"  {line}", style="dim"), soft_wrap=True)
    problems = [f"damaged: {plain(each)}" for each in found.damaged[:FEW]]
    problems += [line for feed in found.feeds for line in _findings(feed)]
    for line in problems:
        out.print(Text(f"  {line}", style=style), soft_wrap=True)


def _effective_line(spent: Effective) -> str:
    """The effective share of the workers' time, and the largest other shares."""
    share = f"{100 * spent.share:.0f} %"
    others = sorted(
        ((LABELS[name], each_s) for name, each_s in spent.seconds.items() if name != "productive"),
        key=lambda other: -other[1],
    )
    shares = [(name, 100 * each_s / spent.total_s) for name, each_s in others[:MOST]]
    most = [f"{name} {percent:.0f} %" for name, percent in shares if percent >= 1]
    rest = f" ({', '.join(most)})" if most else ""
    return f"effective training time: {share} of {spent.total_s:.1f} worker-seconds{rest}"


def _feed_line(feed: FeedAudit, *, several: bool) -> str:
    """How often the samples of a dataset were applied."""
    once, unproven, missing, twice, left = (
        sum(getattr(epoch, name) for epoch in feed.epochs)
        for name in ("once", "unproven", "missing", "twice", "left")
    )
    counts = f"{count(once)} samples once, {count(missing)} missing, {count(twice)} twice"
    if feed.unit == "shard":
        counts += ", as the workers reported"
    counts += f", {count(unproven)} unproven" if unproven else ""
    counts += f", {count(left)} not trained (the loop was left early)" if left else ""
    counts += f", {count(feed.skipped)} skipped as unreadable" if feed.skipped else ""
    if feed.verdict == "not trained":
        counts = "not trained"
    judged = f" ({feed.verdict}: {plain(feed.summary)})" if several else ""
    return f"{plain(feed.dataset)}: {counts}{judged}"


def _findings(feed: FeedAudit) -> list[str]:
    return [
        f"{plain(each.worker)} {PROBLEMS[each.what]} {_steps(each.first, each.last)}"
        f" of {plain(feed.dataset)}"
        for each in feed.findings[:FEW]
    ]


def _steps(first: int, last: int) -> str:
    return f"step {count(first)}" if first == last else f"steps {count(first)} to {count(last)}"


def show_tables(out: Console, found: Audit) -> None:
    """Print a table of epochs and one of workers for each dataset."""
    for feed in found.feeds:
        epochs = Table(box=None, header_style="dim", pad_edge=False)
        for name in ("epoch", "due", "once", "unproven", "missing", "twice", "left"):
            epochs.add_column(name, justify="right")
        if len(feed.epochs) > FEW:
            epochs.title, epochs.title_justify = (
                f"the last {FEW} of {len(feed.epochs)} epochs",
                "left",
            )
        for epoch in feed.epochs[-FEW:]:
            which = str(epoch.epoch) if epoch.epoch >= 0 else f"part {epoch.part}"
            row = (epoch.due, epoch.once, epoch.unproven, epoch.missing, epoch.twice, epoch.left)
            epochs.add_row(which, *map(count, row))
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
