"""Find the modules that a script imports, without running it.

The script and the modules beside it are parsed. Imports at module level are collected in order;
imports inside functions, loops and conditions may never run and are left out, except those of
Strata. A file that changes the environment or the import path may do so because a later import
depends on it (`os.environ["HF_HOME"] = ...` before `import transformers`). In such a file only the
imports before the first other statement are collected, and the search ends there.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

MAX_FILES = 500
OWN = "strata"
READS = frozenset({"get", "copy", "items", "keys", "values"})
"""Methods of `os.environ` that change nothing."""

CHANGERS = frozenset({"putenv", "unsetenv", "load_dotenv", "meta_path", "path_hooks", "addsitedir"})
"""Names that change the environment or how modules are found."""


class Import(NamedTuple):
    """`import module` or, with names, `from module import names`."""

    module: str
    names: tuple[str, ...] = ()


class Found(NamedTuple):
    """The imports in order, and the files that were read to find them."""

    imports: list[Import]
    files: list[Path]


def imports_of(script: Path) -> Found:
    """The script's imports from outside its folder; raises OSError or SyntaxError."""
    search = _Search(script.resolve().parent)
    complete = search.read(script)
    if complete:
        search.found.imports.extend(search.own)
    return search.found


def local_modules(folder: Path) -> set[str]:
    """The names of the modules in a script's folder, which is searched first."""
    with os.scandir(folder) as entries:
        return {
            entry.name.partition(".")[0]
            for entry in entries
            if entry.name.endswith((".py", ".so")) or (Path(entry) / "__init__.py").is_file()
        }


class _Search:
    def __init__(self, folder: Path) -> None:
        self.found = Found([], [])
        self.own: list[Import] = []
        self._folder = folder
        self._local = local_modules(folder)

    def read(self, file: Path) -> bool:
        """Collect a file's imports; False if the search must end there."""
        if file in self.found.files:
            return True
        if len(self.found.files) >= MAX_FILES:
            return False
        self.found.files.append(file)
        tree = ast.parse(file.read_bytes(), str(file))
        self.own.extend(_own_imports(tree))
        changes = changes_imports(tree)
        for statement in _unconditional(tree.body):
            if isinstance(statement, ast.Import | ast.ImportFrom):
                if not all(self._take(each, file) for each in _imports(statement)):
                    return False
            elif changes and not _is_docstring(statement):
                return False
        return True

    def _take(self, wanted: tuple[int, Import], file: Path) -> bool:
        """Collect one import, or read it if it is a local module."""
        level, each = wanted
        top = each.module.partition(".")[0]
        if level == 0 and top not in self._local:
            self.found.imports.append(each)
            return True
        base = self._folder if level == 0 else file.parents[level - 1]
        return all(self.read(path) for path in _files(base, each))


def _files(base: Path, wanted: Import) -> Iterator[Path]:
    """The source files that an import of a local module runs."""
    place = base
    for part in filter(None, wanted.module.split(".")):
        place /= part
        yield from _file_of(place)
    for name in wanted.names:
        yield from _file_of(place / name)


def _file_of(place: Path) -> Iterator[Path]:
    for path in (place / "__init__.py", place.with_suffix(".py")):
        if path.is_file():
            yield path
            return


def _imports(statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[int, Import]]:
    """Each import of a statement, with its relative level."""
    if isinstance(statement, ast.ImportFrom):
        names = tuple(alias.name for alias in statement.names if alias.name != "*")
        yield statement.level, Import(statement.module or "", names)
        return
    for alias in statement.names:
        yield 0, Import(alias.name)


def _unconditional(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at import, including those in `try` and the main block."""
    for statement in body:
        match statement:
            case ast.Try():
                yield from _unconditional(statement.body)
            case ast.If() if "__main__" in ast.unparse(statement.test):
                yield from _unconditional(statement.body)
            case _:
                yield statement


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _own_imports(tree: ast.AST) -> Iterator[Import]:
    """The imports of Strata anywhere in a file: these have no side effects."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for level, each in _imports(node):
                if level == 0 and each.module.partition(".")[0] == OWN:
                    yield each


def changes_imports(tree: ast.AST) -> bool:
    """Whether code may change the environment or the import path."""
    harmless: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(ctx=ast.Load()):
                harmless.add(id(node.value))
            case ast.Attribute() if node.attr in READS:
                harmless.add(id(node.value))
            case ast.Compare():
                harmless.update(id(each) for each in node.comparators)
    return any(_changes(node, harmless) for node in ast.walk(tree))


def _changes(node: ast.AST, harmless: set[int]) -> bool:
    if isinstance(node, ast.Attribute):
        name, of = node.attr, node.value
        if name == "path" and isinstance(of, ast.Name) and of.id == "sys":
            return True
    elif isinstance(node, ast.Name):
        name = node.id
    else:
        return False
    return name in CHANGERS or (name == "environ" and id(node) not in harmless)
