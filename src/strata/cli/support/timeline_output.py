"""Terminal output for the past: times, verdicts, bars over time."""

import re
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console
from rich.text import Text

from strata.cli.support.tables import plain
from strata.timeline.answers import LaneAnswer, SpanKind, TrustAnswer, WhyAnswer
from strata.timeline.read.sentences import counted

BARS = " ▁▂▃▄▅▆▇█"
VERDICTS = {
    "yes": ("✓ yes", "green"),
    "no": ("✗ no", "red"),
    "open": ("◔ still open", "cyan"),
    "unknown": ("? unknown", "yellow"),
}
SPANS: dict[SpanKind, tuple[str, str]] = {
    "train": ("█", "green"),
    "data": ("▒", "blue"),
    "barrier": ("▓", "yellow"),
    "checkpoint": ("◆", "cyan"),
    "recover": ("↻", "magenta"),
    "wait": ("░", "dim"),
    "evaluate": ("▚", "blue"),
    "idle": ("·", "dim"),
    "lost": ("✗", "red"),
}
WEIGHT: tuple[SpanKind, ...] = (
    "lost",
    "recover",
    "checkpoint",
    "barrier",
    "evaluate",
    "train",
    "data",
    "wait",
    "idle",
)
NODE_STYLES = ("cyan", "green", "magenta", "blue", "yellow")


def stamp(moment_ms: float, dated: bool = False) -> str:
    """A time with milliseconds."""
    moment = datetime.fromtimestamp(moment_ms / 1000)
    day = f"{moment:%Y-%m-%d} " if dated else ""
    return f"{day}{moment:%H:%M:%S}.{int(moment_ms % 1000):03d}"


def verdict_text(verdict: str) -> Text:
    """A verdict with its glyph and colour."""
    words, style = VERDICTS[verdict]
    return Text(words, style=f"bold {style}")


def without_verdict(answer: WhyAnswer) -> str:
    """The text of an answer without the verdict that it starts with."""
    return re.sub(f"^{answer.verdict}[:,] ", "", plain(answer.answer))


def node_style(node: str) -> str:
    """A colour per node, always the same one; the coordinator is bold."""
    return "bold" if node == "coordinator" else NODE_STYLES[sum(node.encode()) % len(NODE_STYLES)]


def print_trust(out: Console, trust: TrustAnswer, most: int = 3) -> None:
    """Print whether the log is complete, with the first grave findings if it is not."""
    grave = [finding for finding in trust.findings if finding.grave]
    rest = len(trust.findings) - len(grave)
    if not grave:
        remarks = f" · {counted(rest, 'remark')}" if rest else ""
        out.print(Text.assemble(("log ", "dim"), ("✓ complete", "green"), (remarks, "dim")))
        return
    out.print(Text.assemble(("log ", "dim"), ("✗ incomplete", "red")))
    for finding in grave[:most]:
        out.print(Text(f"    {plain(finding.text)}", style="red"), soft_wrap=True)
    if len(grave) > most:
        out.print(Text(f"    and {len(grave) - most} more: strata why trust", style="dim"))


def sparkline(values: Sequence[int]) -> str:
    """Counts as a line of bars; a count above 0 is at least the lowest bar."""
    top = max(values, default=0)
    if not top:
        return BARS[0] * len(values)
    return "".join(
        BARS[0] if not value else BARS[max(1, round(value / top * (len(BARS) - 1)))]
        for value in values
    )


def lane_bar(lane: LaneAnswer, from_ms: float, to_ms: float, width: int) -> Text:
    """A lane as cells of equal time; each shows the kind that took most of it."""
    cells: list[dict[SpanKind, float]] = [{} for _ in range(width)]
    cell_ms = (to_ms - from_ms) / width
    for span in lane.spans:
        end_ms = to_ms if span.to_ms is None else span.to_ms
        first = max(int((span.from_ms - from_ms) / cell_ms), 0)
        last = min(int((end_ms - from_ms) / cell_ms), width - 1)
        for cell in range(first, last + 1):
            left, right = from_ms + cell * cell_ms, from_ms + (cell + 1) * cell_ms
            shared = min(end_ms, right) - max(span.from_ms, left)
            cells[cell][span.kind] = cells[cell].get(span.kind, 0.0) + max(shared, 0.0)
    bar = Text()
    for shares in cells:
        most = max(WEIGHT, key=lambda kind: shares.get(kind, 0.0))
        seen = sum(shares.values()) > 0.34 * cell_ms
        glyph, style = SPANS[most] if seen else (" ", "none")
        bar.append(glyph, style=style)
    return bar


def legend(lanes: Sequence[LaneAnswer]) -> Text:
    """The meaning of the glyphs, with each kind's share of the workers' time."""
    text = Text()
    spent = {kind: sum((lane.seconds or {}).get(kind, 0.0) for lane in lanes) for kind in WEIGHT}
    total_s = sum(spent.values())
    for kind, (glyph, style) in SPANS.items():
        share = f" {100 * spent[kind] / total_s:.0f} %" if total_s else ""
        text.append(f"{glyph} ", style=style)
        text.append(f"{kind}{share}  ", style="dim")
    return text
