"""A curve as a chart of braille characters: its mean as a line, the range from min to max behind.

A character has two by four dots. A value that is not finite leaves a gap in the line.
"""

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Struct
from rich.text import Text

from strata.timeline.curves.curve_answers import CurvePoints

BARS = "▁▂▃▄▅▆▇█"
BLANK = 0x2800
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""The bit of each dot in a braille character, by column and row."""

LABEL_WIDTH = 11
LARGEST = 1e8
"""Values from here on do not fit a label as an integer."""

Spot: TypeAlias = tuple[int, int]


class Frame(Struct, frozen=True):
    """The ranges of a chart's axes and its size in dots."""

    left: float
    right: float
    bottom: float
    top: float
    width: int
    height: int

    def column(self, x: float) -> int:
        """The column of dots at a position."""
        share = (x - self.left) / ((self.right - self.left) or 1.0)
        return min(max(round(share * (self.width - 1)), 0), self.width - 1)

    def row(self, y: float) -> int:
        """The row of dots of a value, from the top."""
        share = (y - self.bottom) / ((self.top - self.bottom) or 1.0)
        return self.height - 1 - min(max(round(share * (self.height - 1)), 0), self.height - 1)


def chart(
    curve: CurvePoints, left: float, right: float, width: int, height: int, unit: str = ""
) -> list[Text]:
    """The lines of a chart with labels of the vertical axis; `width` includes the labels."""
    lows = [each for each in curve.min if each is not None]
    highs = [each for each in curve.max if each is not None]
    if not lows:
        return [Text(f"{'':{LABEL_WIDTH}} no finite values", style="dim")]
    columns = max(width - LABEL_WIDTH - 2, 10)
    frame = Frame(
        left=left,
        right=right,
        bottom=min(lows),
        top=max(highs),
        width=2 * columns,
        height=4 * height,
    )
    line, band = _line(curve, frame), _band(curve, frame)
    labels = {0: frame.top, height // 2: (frame.top + frame.bottom) / 2, height - 1: frame.bottom}
    return [
        Text.assemble(
            (f"{measured(labels[row], unit) if row in labels else '':>{LABEL_WIDTH}} ", "dim"),
            ("┤" if row in labels else "│", "dim"),
            *(_cell(row, column, line, band) for column in range(columns)),
        )
        for row in range(height)
    ]


def axis_line(left: str, right: str, name: str, width: int) -> list[Text]:
    """The lines of a chart's horizontal axis: its ends and its name."""
    columns = max(width - LABEL_WIDTH - 2, 10)
    middle = name.center(max(columns - len(left) - len(right), len(name) + 2))
    blank = " " * (LABEL_WIDTH + 1)
    return [
        Text(f"{blank}└{'─' * columns}", style="dim"),
        Text(f"{blank} {left}{middle}{right}", style="dim"),
    ]


def _line(curve: CurvePoints, frame: Frame) -> set[Spot]:
    """The dots of the means, joined to a line."""
    dots: set[Spot] = set()
    before: Spot | None = None
    for x, mean in zip(curve.x, curve.mean, strict=True):
        if mean is None:
            before = None
            continue
        here = frame.column(x), frame.row(mean)
        dots.update(_joined(before or here, here))
        before = here
    return dots


def _joined(start: Spot, end: Spot) -> list[Spot]:
    (x0, y0), (x1, y1) = start, end
    steps = max(abs(x1 - x0), abs(y1 - y0), 1)
    return [
        (round(x0 + (x1 - x0) * at / steps), round(y0 + (y1 - y0) * at / steps))
        for at in range(steps + 1)
    ]


def _band(curve: CurvePoints, frame: Frame) -> set[Spot]:
    """The dots from the lowest to the highest value of each bucket."""
    dots: set[Spot] = set()
    for x, low, high in zip(curve.x, curve.min, curve.max, strict=True):
        if low is not None and high is not None and low < high:
            column = frame.column(x)
            dots.update((column, row) for row in range(frame.row(high), frame.row(low) + 1))
    return dots


def _cell(row: int, column: int, line: set[Spot], band: set[Spot]) -> tuple[str, str]:
    """One character: the line if it passes here, else the band."""
    for dots, style in ((line, "cyan"), (band, "dim blue")):
        bits = sum(
            DOTS[x][y] for x in (0, 1) for y in range(4) if (2 * column + x, 4 * row + y) in dots
        )
        if bits:
            return chr(BLANK + bits), style
    return " ", ""


def number(value: float | None) -> str:
    """A value with four significant digits or as an integer; a dash if there is none."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 1000 <= abs(value) < LARGEST else f"{value:.4g}"


def measured(value: float | None, unit: str) -> str:
    """A value with its unit: a time in s, ms or µs, other values without."""
    if unit != "s" or value is None:
        return number(value)
    size = abs(value)
    if size >= 1 or not size:
        return f"{number(value)} s"
    return f"{number(value * 1e3)} ms" if size >= 1e-3 else f"{number(value * 1e6)} µs"


def sparkline(values: Sequence[float | None]) -> str:
    """Values as bars between their lowest and highest; a space where there is none."""
    known = [each for each in values if each is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    top = len(BARS) - 1
    return "".join(
        " " if each is None else BARS[round((each - low) / ((high - low) or 1.0) * top)]
        for each in values
    )
