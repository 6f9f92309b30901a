"""The committed reference pages match the source."""

from pathlib import Path

import pytest

from strata.core.cluster import LIFECYCLES
from strata.core.record import event_reference
from strata.core.record.event_codec import CODEC

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("file", "drawn"),
    [("EVENTS.md", event_reference.events), ("LIFECYCLES.md", event_reference.lifecycles)],
)
def test_committed_page_matches_the_source(file, drawn):
    written = (DOCS / file).read_text("utf-8")
    assert written == drawn(), f"docs/{file} is out of date: run `make docs` and commit it"


def test_every_kind_is_described():
    described = [
        kind
        for module in event_reference.MODULES
        for kind in event_reference.kinds_of(module.__name__)
    ]
    assert sorted(kind.__name__ for kind in described) == sorted(CODEC.kinds)
    assert [kind.__name__ for kind in described if not kind.__doc__] == []


def test_every_life_cycle_is_drawn():
    page = event_reference.lifecycles()
    for table in LIFECYCLES:
        for before, after, _ in table.moves:
            assert f"    {before} --> {after}: " in page
