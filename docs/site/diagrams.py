"""Drawings of the site as SVG: life cycles from the core's tables, bars from benchmark results.

Colours come from the style sheet, so a drawing follows the light and the dark theme.
"""

import html
import json
import re
import tomllib
from pathlib import Path
from typing import Any

from docs.site.markdown import code, table
from docs.site.pages import ROOT

MERMAID = re.compile(r"^```mermaid\n.*?^```$", re.MULTILINE | re.DOTALL)
BOX, GAP, ARC, HEIGHT = 116, 26, 15, 34
PLOTS = Path(__file__).with_name("plots.toml")


def text_at(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    words = html.escape(text)
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def drawing(width: float, height: float, label: str, parts: list[str]) -> str:
    """An SVG element that scales with the page, on one line: Markdown ends HTML at a blank one."""
    inside = "".join(parts)
    return (
        f'<svg class="drawing" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{html.escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg" '
        f'width="{width:g}">{inside}</svg>'
    )


# Life cycles


def boxes_of(life: Any) -> list[str]:
    """The states in the order of the table, final ones last; a group is one box."""
    named = [life.initial if not life.group else life.group]
    for before, after, _ in life.moves:
        named += [before, after]
    inside = set(life.members)
    boxes = dict.fromkeys(life.group if state in inside else state for state in named)
    return sorted(boxes, key=lambda state: state in life.ends())


def life_cycle(life: Any) -> str:
    """States in a row; moves forward are arcs above it, moves back are arcs below."""
    states = boxes_of(life)
    place = {state: number for number, state in enumerate(states)}
    place |= dict.fromkeys(life.members, place.get(life.group, 0))
    moves = dict.fromkeys((place[a], place[b]) for a, b, _ in life.moves)
    forward = max((b - a for a, b in moves if b > a), default=0)
    back = max((a - b for a, b in moves if b < a), default=0)
    top = 14 + (forward - 1) * ARC * 1.6 if forward > 1 else 14
    bottom = 14 + back * ARC * 1.6
    parts = [
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,0L8,4L0,8z" class="tip"/></marker></defs>'
    ]
    for a, b in moves:
        parts.append(arc(a, b, top))
    ends = {place[state] for state in life.ends()}
    for state, number in ((state, place[state]) for state in states):
        kind = "state end" if number in ends else "state"
        x = number * (BOX + GAP) + 2
        parts.append(
            f'<rect x="{x}" y="{top:g}" width="{BOX}" height="{HEIGHT}" rx="6" class="{kind}"/>'
        )
        parts.append(text_at(x + BOX / 2, top + HEIGHT / 2 + 4, state.replace("_", " "), "name"))
    width = len(states) * (BOX + GAP) - GAP + 4
    return drawing(width, top + HEIGHT + bottom, f"Life cycle of a {life.name}", parts)


def arc(a: int, b: int, top: float) -> str:
    """The move from box `a` to box `b`."""
    step = BOX + GAP
    if b == a + 1:
        x, y = a * step + BOX + 2, top + HEIGHT / 2
        return f'<path d="M{x},{y:g}H{x + GAP - 1}" class="move" marker-end="url(#tip)"/>'
    lift = (abs(b - a) - (b > a)) * ARC * 2.1
    # Arrows leave and enter a box at different places, so that they do not cover each other.
    start = a * step + BOX * (0.62 if b > a else 0.38) + 2
    end = b * step + BOX * (0.38 if b > a else 0.62) + 2
    edge, beyond = (top, top - lift) if b > a else (top + HEIGHT, top + HEIGHT + lift)
    path = f"M{start:g},{edge:g}C{start:g},{beyond:g} {end:g},{beyond:g} {end:g},{edge:g}"
    return f'<path d="{path}" class="move" marker-end="url(#tip)"/>'


def moves_of(life: Any) -> str:
    """The moves of a life cycle as a table."""
    rows = [[code(a), code(b), through] for a, b, through in life.moves]
    moves = table(["from", "to", "by"], rows)
    if not life.group:
        return moves
    members = ", ".join(map(code, life.members))
    return f"`{life.group}` stands for {members}; a {life.name} moves freely among them.\n\n{moves}"


def life_cycles(page: str) -> str:
    """The page of life cycles with its Mermaid diagrams drawn, because those need a script."""
    from strata.core import cluster

    drawn = [f"{life_cycle(life)}\n\n{moves_of(life)}" for life in cluster.LIFECYCLES]
    rest = iter(drawn)
    page, count = MERMAID.subn(lambda _: next(rest), page)
    if count != len(drawn):
        raise ValueError(f"docs/LIFECYCLES.md has {count} diagrams, the core {len(drawn)}")
    return page


# Benchmarks


def figure(result: dict[str, Any], path: str) -> float:
    """A number of a result by its path, such as `median_s / torchrun`; of a list the median."""
    value: Any = result
    for key in path.split(" / "):
        value = value[key]
    return float(value)


def bars(title: str, unit: str, values: dict[str, float]) -> str:
    """Horizontal bars, each with its value."""
    left, width, row = 260, 400, 30
    most = max(values.values())
    parts = []
    for number, (name, value) in enumerate(values.items()):
        y = number * row + 4
        length = max(value / most * width, 1.5)
        kind = "bar own" if name.startswith("Strata") else "bar"
        parts.append(text_at(left - 10, y + 15, name, "name", "end"))
        parts.append(
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="20" rx="3" class="{kind}"/>'
        )
        parts.append(text_at(left + length + 8, y + 15, f"{value:,.4g} {unit}", "value", "start"))
    return drawing(left + width + 110, len(values) * row + 8, title, parts)


def plots() -> str:
    """Every plot of `plots.toml`, with where and when its result was measured."""
    parts = []
    for plot in tomllib.loads(PLOTS.read_text("utf-8"))["plot"]:
        file = ROOT / "benchmarks" / "results" / f"{plot['result']}.json"
        result = json.loads(file.read_text("utf-8"))
        values = {name: figure(result, path) for name, path in plot["bars"].items()}
        machine = result["machine"]
        where = f"{result.get('device') or machine['cpu']}, {machine['cores']} cores"
        parts += [f"### {plot['title']}", bars(plot["title"], plot["unit"], values)]
        parts.append(
            f"{plot['note']} Result [`{plot['result']}`](#{plot['result']}), measured "
            f"{result['date']} at commit `{machine['commit']}` on {where}."
        )
    return "\n\n".join(parts)


def benchmarks(page: str) -> str:
    """The page of benchmarks with the plots before its table of goals."""
    head, goals, rest = page.partition("## Goals")
    if not goals:
        raise ValueError("docs/BENCHMARKS.md has no section Goals")
    return f"{head}## In pictures\n\n{plots()}\n\n{goals}{rest}"
