"""The table of promises: what the first documents say, and which test shows it.

The data are `claims.toml` and `events.toml` beside this file. `python -m tests.seeds.promises`
prints the page docs/SEEDS.md; `make docs` writes it.
"""

import ast
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from msgspec import Struct, convert

import strata
from tests.tidy.test_catalogue import ROOMS, made_in

HERE, TESTS = Path(__file__).parent, Path(__file__).parents[1]
SOURCE = Path(strata.__file__).parent

DOCUMENTS = {
    "000": "Metrics and logs",
    "001": "Dashboard",
    "002": "Architecture",
    "003": "Troubleshooting and recovery",
    "004": "Events and the timeline",
}

INTRODUCTION = """\
<!-- Generated from tests/seeds by `make docs`; do not edit. -->

# Promises, and the tests that show them

Strata began with five documents: on metrics and logs, the dashboard, the architecture, \
troubleshooting, and events. This page lists what they promise to users, in our words. Beside each \
promise is the test that shows it, or what is missing. Most of these tests start real processes: a \
coordinator, agents, workers that are killed, an S3 server, a browser.

Run one with `pytest tests/<the test>`.
"""

EVENTS = """\
## Events

The document on events lists what a run has to record. For each event: our kind (its fields are in \
[EVENTS.md](EVENTS.md)), the modules that record it, and the test that saw it on a real run.
"""


class Claim(Struct, forbid_unknown_fields=True):
    """A promise; it holds when tests show it and nothing is missing."""

    seed: str
    says: str
    tests: list[str] = []
    missing: str = ""

    @property
    def holds(self) -> bool:
        return bool(self.tests) and not self.missing


class Row(Struct, forbid_unknown_fields=True):
    """An event that was asked for, and the kind that records it."""

    group: str
    name: str
    kind: str
    fields: list[str]
    test: str
    missing: str = ""


def read_claims() -> list[Claim]:
    found = tomllib.loads((HERE / "claims.toml").read_text("utf-8"))["claim"]
    return convert(found, list[Claim])


def read_events() -> list[Row]:
    found = tomllib.loads((HERE / "events.toml").read_text("utf-8"))["event"]
    return convert(found, list[Row])


def exists(test: str) -> bool:
    """Whether there is such a test: a file below tests/, then a class and a function in it."""
    file, *names = test.split("::")
    if not names or not (TESTS / file).is_file():
        return False
    body = parsed(TESTS / file).body
    for name in names:
        found = [node for node in body if getattr(node, "name", None) == name]
        if not found:
            return False
        body = getattr(found[0], "body", [])
    return names[-1].startswith("test_")


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


@cache
def emitters() -> dict[str, list[str]]:
    """The modules that make each kind, in code that a run goes through."""
    found: dict[str, list[str]] = {}
    for file in sorted(file for room in ROOMS for file in (SOURCE / room).rglob("*.py")):
        for name in made_in(parsed(file)):
            found.setdefault(name, []).append(file.relative_to(SOURCE).as_posix())
    return found


def page() -> str:
    """The page docs/SEEDS.md."""
    claims, events = read_claims(), read_events()
    holding = sum(claim.holds for claim in claims)
    parts = [INTRODUCTION, f"**{holding} of {len(claims)} promises hold.**\n"]
    for seed, title in DOCUMENTS.items():
        own = [claim for claim in claims if claim.seed == seed]
        parts += [f"## {title}\n", f"{sum(claim.holds for claim in own)} of {len(own)} hold.\n"]
        parts.append(table(("", "promise", "shown by", "missing"), map(claim_cells, own)))
    made = emitters()
    complete = sum(not row.missing for row in events)
    parts += [EVENTS, f"{complete} of {len(events)} are complete.\n"]
    parts.append(
        table(("", "event", "kind", "recorded by", "seen by", "missing"), cells(events, made))
    )
    return "\n".join(parts)


def claim_cells(claim: Claim) -> tuple[str, ...]:
    return "✓" if claim.holds else "✗", claim.says, code(claim.tests), claim.missing


def cells(events: list[Row], made: dict[str, list[str]]) -> Iterable[tuple[str, ...]]:
    for row in events:
        kind = f"[`{row.kind}`](EVENTS.md#{row.kind.lower()})"
        modules = code(made.get(row.kind, []))
        yield "✗" if row.missing else "✓", row.name, kind, modules, code([row.test]), row.missing


def code(names: list[str]) -> str:
    return "<br>".join(f"`{name}`" for name in names)


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(page(), end="")
