"""Checks that facts, and Structs with more than three fields, are built with keyword arguments.

A field that is added later then cannot shift the meaning of the others. Sources are parsed, never
imported, so every file is checked whether its libraries are installed or not.
"""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
BENCHMARKS = ROOT / "benchmarks"
MOST_POSITIONAL = 3


class Classes:
    """The Structs that the sources define, by module and name, with the number of their fields."""

    def __init__(self, sources: dict[str, ast.Module]) -> None:
        self.names = {module: _names(tree, module) for module, tree in sources.items()}
        self.definitions = {
            (module, node.name): node
            for module, tree in sources.items()
            for node in tree.body
            if isinstance(node, ast.ClassDef)
        }

    def find(self, module: str, expression: ast.expr) -> tuple[str, str] | None:
        """The module and name of the class that an expression names in a module."""
        match expression:
            case ast.Name(id=name):
                return self.names[module].get(name)
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                package, inner = self.names[module].get(owner, ("", ""))
                return (f"{package}.{inner}", name)
            case ast.Subscript(value=value):
                return self.find(module, value)
        return None

    def ancestors(self, found: tuple[str, str]) -> list[tuple[str, str]]:
        """A class and its bases, as far as the sources define them."""
        known = [found]
        if found in self.definitions:
            for base in self.definitions[found].bases:
                above = self.find(found[0], base)
                known += self.ancestors(above) if above else []
        return known

    def needs_keywords(self, found: tuple[str, str]) -> bool:
        above = self.ancestors(found)
        if ("strata.core.events", "Fact") in above:
            return True
        return ("msgspec", "Struct") in above and sum(map(self._fields, above)) > MOST_POSITIONAL

    def _fields(self, found: tuple[str, str]) -> int:
        body = self.definitions[found].body if found in self.definitions else []
        return sum(
            isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)
            for node in body
        )


def _names(tree: ast.Module, module: str) -> dict[str, tuple[str, str]]:
    """What each name means in a module: the module and name that it was defined with."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {each.asname or each.name: (node.module, each.name) for each in node.names}
        elif isinstance(node, ast.ClassDef):
            found[node.name] = (module, node.name)
    return found


def faults(files: dict[str, str]) -> list[str]:
    """Calls that pass a field by position although the class needs keywords."""
    sources = {module: ast.parse(text) for module, text in files.items()}
    classes = Classes(sources)
    return [
        f"{module}:{node.lineno}: {found[1]} is built by position"
        for module, tree in sources.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and node.args
        if (found := classes.find(module, node.func)) and classes.needs_keywords(found)
    ]


def test_structs_with_many_fields_are_built_with_keywords():
    files = {_module_name(file): file.read_text("utf-8") for file in sorted(SRC.rglob("*.py"))}
    assert len(files) > 100
    scripts = {file.stem: file.read_text("utf-8") for file in sorted(BENCHMARKS.glob("*.py"))}
    assert faults(files | scripts) == []


def _module_name(file: Path) -> str:
    parts = file.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


EXAMPLES = {
    "strata.core.events": "from msgspec import Struct\nclass Fact(Struct): pass",
    "facts": "from strata.core.events import Fact\nclass Lost(Fact):\n    worker: str",
    "rows": "from msgspec import Struct\nclass Base(Struct):\n    a: int\n    b: int\n"
    "class Row(Base):\n    c: int\n    d: int\nclass Pair(Base): pass",
}


def test_positional_fields_are_found():
    for call in ("Lost('a')", "Row(1, b=2, c=3, d=4)", "rows.Row(*values)"):
        source = f"from x import rows\nfrom facts import Lost\nfrom rows import Row\n{call}"
        files = EXAMPLES | {"x.rows": EXAMPLES["rows"], "caller": source}
        assert len(faults(files)) == 1, call


def test_few_fields_may_be_positional():
    source = "from rows import Pair, Row\nPair(1, 2)\nRow(a=1, b=2, c=3, d=4)"
    assert faults(EXAMPLES | {"caller": source}) == []
