"""Guards the code blocks of the documentation as far as that goes without running them: each says
what it is, or why it is not run; each command is one that the command line accepts."""

import json
import tomllib
from pathlib import Path

import pytest
from typer.exceptions import TyperException
from typer.main import get_command_from_info
from typer.models import CommandInfo

from strata import cli
from strata.config import FIELDS
from tests.docs import blocks
from tests.docs.blocks import Block

BLOCKS = blocks.all_blocks()


def of(*languages):
    return [pytest.param(each, id=each.place) for each in BLOCKS if each.language in languages]


def fault(block):
    """What is wrong with the marks of a block; empty if nothing is."""
    if block.language not in blocks.LANGUAGES:
        return f"needs a language: one of {', '.join(sorted(blocks.LANGUAGES))}"
    if block.language == "text" and not block.title:
        return 'text needs a title that says what it is: ```text title="example, not compared"'
    if block.language == "console" and not block.title:
        return 'a console needs a title: ```console title="example, not compared"'
    if block.language == "bash" and block.runs:
        others = [each for each in block.commands if blocks.strata_arguments(each) is None]
        if others:
            return f'{others[0]!r} is not run: ```bash title="not run by tests: REASON"'
    return ""


def refusal(arguments):
    """What the command line says against these arguments; empty if it accepts them."""
    verb, *rest = arguments
    if verb.replace("-", "_") not in {file.stem for file in cli.verb_files()}:
        return f"there is no verb {verb}"
    info = CommandInfo(name=verb, callback=cli.load_verb(verb.replace("-", "_")))
    command = get_command_from_info(info, pretty_exceptions_short=False, rich_markup_mode=None)
    try:
        command.make_context(verb, cli.with_values(rest))
    except TyperException as error:
        return error.format_message()
    return ""


def test_every_block_says_what_it_is():
    assert len(BLOCKS) > 50
    assert {each.place: fault(each) for each in BLOCKS if fault(each)} == {}


@pytest.mark.parametrize("block", of("bash", "console"))
def test_commands_of_a_block_are_accepted_by_the_command_line(block):
    if block.title.startswith(blocks.NOT_RUN):
        return
    found = [blocks.strata_arguments(each) for each in block.commands]
    refused = {" ".join(each): refusal(each) for each in found if each and each[0] != "--help"}
    assert {command: why for command, why in refused.items() if why} == {}


@pytest.mark.parametrize("block", of("python"))
def test_python_of_a_block_compiles(block):
    compile(block.text, block.place, "exec")


@pytest.mark.parametrize("block", of("json", "toml"))
def test_data_of_a_block_is_valid(block):
    if block.language == "json":
        json.loads(block.text)
    else:
        known = {*FIELDS, "run"}  # `run` has the defaults of `strata run`
        assert [name for name in tomllib.loads(block.text) if name not in known] == []


def test_blocks_that_another_test_runs_exist():
    places = {(block.page, block.first) for block in BLOCKS}
    assert blocks.RUN_ELSEWHERE.keys() <= places
    for (page, _), file in blocks.RUN_ELSEWHERE.items():
        assert Path(page).name in (blocks.ROOT / file).read_text("utf-8")


@pytest.mark.parametrize(
    ("language", "text"),
    [("", "x"), ("sh", "ls"), ("text", "x"), ("bash", "ls"), ("console", "$ strata status")],
)
def test_the_checker_sees_an_unmarked_block(language, text):
    assert fault(Block(page="x.md", line=1, language=language, title="", text=text))


@pytest.mark.parametrize("arguments", ["nothing", "status --no-such", "resize"])
def test_the_checker_sees_a_command_that_does_not_exist(arguments):
    assert refusal(arguments.split())
