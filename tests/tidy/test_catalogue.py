"""Guards that no kind of fact is only a promise: code that a run goes through makes each of them.

The simulator and the read side do not count, nor does naming a kind to compare with it.
"""

import ast
from pathlib import Path

import strata
from strata.core.record.event_codec import CODEC

SOURCE = Path(strata.__file__).parent
ROOMS = ("core", "sdk", "agent", "coordinator")


def made_in(tree: ast.AST) -> set[str]:
    """The names that are called, or handed to what may call them; not by `@applies(Kind)`."""
    registering = [d for node in ast.walk(tree) for d in getattr(node, "decorator_list", [])]
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.IfExp):
            found += [node.body, node.orelse]
        elif isinstance(node, ast.Call) and node not in registering:
            compares = getattr(node.func, "id", "") == "isinstance"
            found += [] if compares else [node.func, *node.args]
    return {each.id for each in found if isinstance(each, ast.Name)}


def test_every_kind_is_made_by_code_that_a_run_goes_through():
    files = [file for room in ROOMS for file in (SOURCE / room).rglob("*.py")]
    made = {name for file in files for name in made_in(ast.parse(file.read_text("utf-8")))}
    kinds = {kind.__name__ for kind in CODEC.kinds.values()}
    assert kinds - made == set()
