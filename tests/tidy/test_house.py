"""Guards the map of the source tree: small folders, unique module names, documented packages."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "strata"
FOLDERS = [SOURCE, *(each.parent for each in SOURCE.rglob("*/__init__.py"))]
MOST_MODULES = 20


def modules_of(folder: Path) -> list[Path]:
    return sorted(file for file in folder.glob("*.py") if not file.stem.startswith("__"))


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
    rooms = "|".join(each.name for each in SOURCE.iterdir() if each.is_dir())
    named = set(re.findall(rf"`((?:{rooms})/[a-z0-9_/]+)`", text))
    assert len(named) > 50
    missing = [
        name
        for name in sorted(named)
        if not (SOURCE / name).is_dir() and not (SOURCE / f"{name}.py").is_file()
    ]
    assert missing == []
