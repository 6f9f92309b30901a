"""Guards the reference pages: what is committed is what the source says now."""

from pathlib import Path

import pytest

from strata.core import docs
from strata.core.catalogue import CODEC
from strata.core.cluster import LIFECYCLES

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("file", "drawn"), [("EVENTS.md", docs.events), ("LIFECYCLES.md", docs.lifecycles)]
)
def test_the_page_is_what_the_source_says(file, drawn):
    written = (DOCS / file).read_text("utf-8")
    assert written == drawn(), f"docs/{file} is out of date: run `make docs` and commit it"


def test_every_kind_is_described():
    described = [kind for module in docs.MODULES for kind in docs.kinds_of(module.__name__)]
    assert sorted(kind.__name__ for kind in described) == sorted(CODEC.kinds)
    assert [kind.__name__ for kind in described if not kind.__doc__] == []


def test_every_life_cycle_is_drawn():
    page = docs.lifecycles()
    for table in LIFECYCLES:
        for before, after, _ in table.moves:
            assert f"    {before} --> {after}: " in page
