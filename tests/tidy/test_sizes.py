"""Guards the sizes that keep a file one idea and a function one screen, and that each module
says what it is for."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULE_LINES = 450  # 400 is the guide; this is the limit
FUNCTION_LINES = 60
# Spelt apart so that this file does not name what it forbids.
LEFTOVER = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b")


def sources(*folders: str) -> list[Path]:
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    return [file for file in files if "_pb2" not in file.stem]


def long_functions(source: str) -> list[str]:
    """Functions with a long body. Signatures do not count: verbs declare their options there."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.body[0].lineno + 1 > FUNCTION_LINES
    ]


def docstring_fault(file: str, source: str) -> str:
    text = ast.get_docstring(ast.parse(source)) or ""
    if not text.strip():
        return "has no docstring"
    if file == "__init__.py" and ("\n" in text or not text.endswith(".") or " " not in text):
        return "the docstring of a package is one sentence on one line"
    return ""


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_modules_are_short():
    lengths = {named(file): len(file.read_text("utf-8").splitlines()) for file in sources("src")}
    assert lengths
    assert {file: lines for file, lines in lengths.items() if lines > MODULE_LINES} == {}


def test_functions_fit_on_a_screen():
    found = {
        named(file): long_functions(file.read_text("utf-8")) for file in sources("src", "tests")
    }
    assert {file: names for file, names in found.items() if names} == {}


def test_modules_say_what_they_are_for():
    found = {
        named(file): docstring_fault(file.name, file.read_text("utf-8")) for file in sources("src")
    }
    assert {file: fault for file, fault in found.items() if fault} == {}


def test_nothing_is_left_for_later():
    files = sources("src", "tests", "benchmarks", "examples")
    assert [named(file) for file in files if LEFTOVER.search(file.read_text("utf-8"))] == []


def test_the_checker_sees_a_long_function():
    assert long_functions("def f():\n" + "    pass\n" * (FUNCTION_LINES + 1)) == ["f"]
    assert long_functions("def f():\n" + "    pass\n" * FUNCTION_LINES) == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("module.py", "x = 1"),
        ("__init__.py", '"""One sentence here.\n\nAnd an essay."""'),
        ("__init__.py", '"""Core"""'),
    ],
)
def test_the_checker_sees_a_missing_purpose(file, source):
    assert docstring_fault(file, source)
