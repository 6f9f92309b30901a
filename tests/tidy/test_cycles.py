"""Checks that the modules of `core` import each other without a cycle, so each can be read after
the ones that it builds on. An import under `TYPE_CHECKING` or inside a function counts."""

import ast
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


def imported(source: str) -> set[str]:
    """The modules and names that a source imports, as dotted names."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def cycle(sources: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle; empty if there are none."""
    graph = {module: imported(source) & sources.keys() for module, source in sources.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_core_has_no_import_cycle():
    files = [file for file in (SRC / "strata/core").rglob("*.py") if file.stem != "__init__"]
    names = {".".join(file.relative_to(SRC).with_suffix("").parts): file for file in files}
    assert len(names) > 10
    assert cycle({name: file.read_text("utf-8") for name, file in names.items()}) == []


def test_cycle_is_found():
    hidden = "if TYPE_CHECKING:\n    from strata.core.a import A"
    assert cycle({"strata.core.a": "from strata.core import b", "strata.core.b": hidden})
    assert not cycle({"strata.core.a": "from strata.core import b", "strata.core.b": "import json"})
