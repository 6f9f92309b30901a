"""Guards the map of the source tree: small folders, unique module names, documented packages."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strata"
FOLDERS = [SOURCE, *(each.parent for each in SOURCE.rglob("*/__init__.py"))]
MOST_MODULES = 20
TOP_FOLDERS = "|".join(each.name for each in SOURCE.iterdir() if each.is_dir())
PATH = re.compile(rf"`((?:{TOP_FOLDERS})/[a-z0-9_/]+)`")
"""A path below src/strata in backticks, such as `core/order`."""


def modules_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if not file.stem.startswith("__"))


def exists(path: str) -> bool:
    return (SOURCE / path).is_dir() or (SOURCE / f"{path}.py").is_file()


def is_verb(file: Path) -> bool:
    return file.parent == SOURCE / "cli"


def test_folders_have_at_most_twenty_modules():
    sizes = {folder: len(modules_of(folder)) for folder in FOLDERS if folder != SOURCE / "cli"}
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_module_names_are_unique():
    """A verb's file is named after the verb, so it may share its name with the module it shows."""
    places = defaultdict(list)
    for folder in FOLDERS:
        for file in modules_of(folder):
            if not is_verb(file):
                places[file.stem].append(str(file.relative_to(SOURCE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_packages_say_what_they_contain():
    silent = [
        str(folder.relative_to(SOURCE))
        for folder in FOLDERS
        if not ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
    ]
    assert silent == []


def test_architecture_names_existing_modules():
    """Paths in docs/ARCHITECTURE.md are relative to src/strata."""
    text = (ROOT / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(PATH.findall(text))
    assert len(named) > 50
    assert [name for name in sorted(named) if not exists(name)] == []


def test_source_names_existing_modules():
    """Paths in docstrings and comments are relative to src/strata, as in docs/ARCHITECTURE.md."""
    named = {
        (str(file.relative_to(SOURCE)), path)
        for file in SOURCE.rglob("*.py")
        for path in PATH.findall(file.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    assert [each for each in sorted(named) if not exists(each[1])] == []
