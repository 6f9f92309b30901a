"""Render docs/BENCHMARKS.md from the stored results.

    python benchmarks/render.py

The page has a table of goals (`goals.toml`: what, which figure of which result, the bound), then
every figure of every result with its date, commit and machine. Rows of `results/earlier.json` were
recorded before results were stored as JSON; a script's earlier rows are shown until the script has
a result of its own. No figure is typed by hand.
"""

import ast
import json
import operator
import tomllib
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "BENCHMARKS.md"
ABOUT = {"benchmark", "date", "machine", "arguments", "peers_left_out", "exit_code"}
MET = {"<": operator.lt, "<=": operator.le, ">=": operator.ge, ">": operator.gt}
INTRO = """<!-- Generated from benchmarks/results by `make bench`; do not edit. -->

# Benchmarks

`make bench` runs every script in [benchmarks](../benchmarks), stores one JSON result for each in
`benchmarks/results`, and renders this page from them; `make bench ONLY="core store"` runs some of
them. Compare ratios rather than absolute figures: each section names its machine and the load
average at the time."""


def results() -> dict[str, dict]:
    """The stored results by name."""
    files = sorted((HERE / "results").glob("*.json"))
    found = {file.stem: json.loads(file.read_text("utf-8")) for file in files}
    found.pop("earlier", None)
    return found


def figures(result: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Every leaf of a result with its path; the values of a list are one leaf."""
    if isinstance(result, dict):
        for key, value in result.items():
            if path or key not in ABOUT:
                yield from figures(value, f"{path} / {key}" if path else key)
    else:
        yield path, result


def shown(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, list):
        return ", ".join(map(shown, value))
    return str(value).replace("|", "\\|").replace("[", "\\[").replace("\n", " ")


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def goals(found: dict[str, dict]) -> str:
    """The table of goals, each with the figure that was measured."""
    rows = []
    for goal in tomllib.loads((HERE / "goals.toml").read_text("utf-8"))["goal"]:
        bound = f"{goal['must']} {shown(goal['bound'])} {goal.get('unit', '')}".strip()
        result = found.get(goal["result"])
        if result is None:
            rows.append([goal["what"], f"`{goal['result']}`", "not measured yet", bound, ""])
            continue
        value = dict(figures(result)).get(goal["figure"])
        if value is None:
            rows.append([goal["what"], f"`{goal['result']}`", "no such figure", bound, ""])
            continue
        met = MET[goal["must"]](value, goal["bound"])
        measured = f"{shown(value)} {goal.get('unit', '')}".strip()
        rows.append(
            [goal["what"], f"`{goal['result']}`", measured, bound, "met" if met else "**missed**"]
        )
    return table(["what", "result", "measured", "goal", ""], rows)


def section(name: str, result: dict) -> str:
    machine = result["machine"]
    facts = [
        f"{result.get('date', 'date unknown')}, commit `{machine.get('commit', 'unknown')}`",
        f"{machine.get('cpu', '')}, {machine.get('cores', '?')} cores",
        f"load average {machine.get('load_average', '?')}",
        f"Python {machine.get('python', '?')}",
    ]
    if machine.get("filesystem"):
        facts.append(machine["filesystem"])
    if result.get("peers_left_out"):
        facts.append(f"without {', '.join(result['peers_left_out'])}, which could not be installed")
    rows = [[path, shown(value)] for path, value in figures(result)]
    return (
        f"## {name}\n\n{purpose(name)}\n\n{', '.join(facts)}.\n\n{table(['figure', 'value'], rows)}"
    )


def purpose(name: str) -> str:
    """The first paragraph of the script's docstring."""
    tree = ast.parse((HERE / f"bench_{name}.py").read_text("utf-8"))
    first = (ast.get_docstring(tree) or "").split("\n\n")[0]
    return f"`bench_{name}.py`: {' '.join(first.split())}"


def earlier(found: dict[str, dict]) -> str:
    """The rows that were recorded before, of scripts that have no result of their own yet."""
    kept = json.loads((HERE / "results" / "earlier.json").read_text("utf-8"))
    rows = [
        [row["what"], row["script"], row["measured"], row["goal"]]
        for row in kept["rows"]
        if not set(row["names"]) <= found.keys()
    ]
    if not rows:
        return ""
    head = (
        f"## Recorded earlier\n\nThese scripts have no stored result yet. The rows were recorded "
        f"by {kept['date']}, commit `{kept['commit']}`: {kept['machine']}\n\n"
    )
    return head + table(["what", "script", "measured", "goal"], rows)


def page() -> str:
    found = results()
    missing = sorted(
        {file.stem.removeprefix("bench_") for file in HERE.glob("bench_*.py")} - found.keys()
    )
    parts = [INTRO, "## Goals", goals(found)]
    parts += [section(name, result) for name, result in found.items()]
    parts.append(earlier(found))
    if missing:
        parts.append("## Without a result\n\n" + ", ".join(f"`{name}`" for name in missing) + ".")
    return "\n\n".join(filter(None, parts)) + "\n"


def main() -> None:
    PAGE.write_text(page(), "utf-8")


if __name__ == "__main__":
    main()
