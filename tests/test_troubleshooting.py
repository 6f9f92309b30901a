"""Guards docs/TROUBLESHOOTING.md: what it tells people to type exists."""

import re
from pathlib import Path

import pytest

from strata.config import FIELDS, VARIABLES
from tests.test_deploy import flags_of

pytestmark = pytest.mark.slow
TEXT = (Path(__file__).parents[1] / "docs" / "TROUBLESHOOTING.md").read_text("utf-8")
COMMANDS = sorted(set(re.findall(r"(?<!from )\bstrata ([a-z]+)\b([^`\n|]*)", TEXT)))
SETTINGS = re.findall(r"`([a-z]+(?:_[a-z]+)*_s|checkpoint_when_busy)`", TEXT)
# Shown as a mistake.
MISSPELT = {"STRATA_HEARTBEAT_TIMEOUT"}


@pytest.mark.parametrize(("verb", "words"), COMMANDS)
def test_commands_exist(verb, words):
    assert set(re.findall(r"(?<!\S)--[a-z-]+", words)) <= flags_of(verb)


def test_settings_exist():
    assert SETTINGS
    assert set(SETTINGS) <= set(FIELDS)
    known = {variable for names in VARIABLES.values() for variable in names}
    assert set(re.findall(r"\bSTRATA_[A-Z_]+\b", TEXT)) - MISSPELT <= known
