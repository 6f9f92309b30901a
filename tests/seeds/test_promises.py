"""Guards the table of promises: every row names a test that exists, and the page follows it."""

from pathlib import Path

import pytest

from strata.core.record.event_codec import CODEC
from tests.seeds import promises

pytestmark = pytest.mark.quick

CLAIMS, EVENTS = promises.read_claims(), promises.read_events()
KINDS = {kind.__name__: kind for kind in CODEC.kinds.values()}


def test_page_is_what_the_table_says():
    page = Path(promises.__file__).parents[2] / "docs" / "SEEDS.md"
    assert page.read_text("utf-8") == promises.page(), "run: make docs"


def test_every_named_test_exists():
    named = {test for claim in CLAIMS for test in claim.tests} | {row.test for row in EVENTS}
    assert {test for test in named if not promises.exists(test)} == set()


@pytest.mark.parametrize(
    "test",
    ["seeds/test_promises.py::test_nobody_wrote", "seeds/nowhere.py::test_x", "seeds/events.toml"],
)
def test_test_that_nobody_wrote_is_noticed(test):
    assert not promises.exists(test)


def test_every_claim_is_shown_or_says_what_is_missing():
    for claim in CLAIMS:
        assert claim.tests or claim.missing, claim.says
        assert claim.seed in promises.DOCUMENTS
        assert "|" not in claim.says + claim.missing
    assert len({claim.says for claim in CLAIMS}) == len(CLAIMS)


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.kind)
def test_event_has_a_kind_with_its_fields_that_code_of_a_run_makes(row):
    assert set(row.fields) <= set(KINDS[row.kind].__struct_fields__)
    assert promises.emitters().get(row.kind), "no module makes it"


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row.kind)
def test_test_that_saw_an_event_names_it(row):
    name = row.kind
    for phase in ("Started", "Progress", "Completed"):
        name = name.removesuffix(phase)
    file = promises.TESTS / row.test.partition("::")[0]
    assert name in file.read_text("utf-8")
