"""Guards the direction of dependencies, the purity of `core`, and that only `config` reads the
environment. Sources are parsed, never imported, so a broken room cannot hide its imports."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SRC = Path(__file__).parents[2] / "src"

BASE = {"core", "errors", "extras", "config", "files"}
INNER = BASE | {"store", "storage", "checkpoint", "data", "wire", "workdir", "logsetup"}

# Which rooms each room may import besides itself. `strata` is the package's own `__init__`.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "extras": {"errors"},
    "files": set(),
    "setting_types": set(),
    "alert_options": {"core", "setting_types"},
    "settings_file": {"errors"},
    "config": {"alert_options", "core", "errors", "setting_types", "settings_file"},
    "core": {"errors"},
    "logsetup": {"config", "errors"},
    "store": BASE,
    "storage": BASE,
    "checkpoint": BASE | {"storage"},
    "data": BASE | {"storage"},
    "wire": BASE,
    "workdir": BASE,
    "agent": INNER | {"sdk"},
    "sdk": INNER | {"strata"},
    "timeline": INNER,
    "torch": INNER | {"sdk"},
    "compat": {"errors", "sdk", "strata"},
    "launch": INNER | {"agent", "coordinator", "strata"},
    "coordinator": INNER | {"timeline"},
    "sim": INNER | {"coordinator", "sdk"},
    "__main__": {"cli"},
    "cli": INNER
    | {"coordinator", "agent", "launch", "sdk", "sim", "timeline", "strata"}
    | {"settings_file"},
    "strata": {"checkpoint", "data", "errors", "sdk", "storage"},
    "dtruntime": {"strata"},
}

CORE_LIBRARIES = {"msgspec", "numpy"}
IMPURE_MODULES = (
    {"time", "sched", "random", "secrets", "uuid"}
    | {"asyncio", "concurrent", "contextvars", "multiprocessing", "queue", "signal", "threading"}
    | {"ctypes", "getpass", "importlib", "locale", "os", "platform", "subprocess", "sys"}
    | {"fcntl", "fileinput", "glob", "io", "logging", "mmap", "pathlib", "shelve", "shutil"}
    | {"http", "select", "selectors", "socket", "socketserver", "ssl", "urllib"}
    | {"sqlite3", "tempfile"}
)
IMPURE_CALLS = {"open", "print", "input", "eval", "exec", "__import__", "breakpoint"}
CLOCK_READS = {
    f"{kind}.{read}" for kind in ("datetime", "date") for read in ("now", "utcnow", "today")
}
NUMPY_IMPURE = {"random", "load", "loadtxt", "save", "savez", "savetxt", "fromfile", "memmap"}


def room_of(path: Path) -> str:
    package, *rest = path.relative_to(SRC).with_suffix("").parts
    return rest[0] if package == "strata" and rest != ["__init__"] else package


def imports(tree: ast.AST, path: Path) -> Iterator[tuple[int, str]]:
    """Every imported dotted name with its line; `from a import b` gives `a.b`."""
    package = path.relative_to(SRC).parent.parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def imported_room(name: str) -> str | None:
    package, _, rest = name.partition(".")
    if package != "strata":
        return package if package == "dtruntime" else None
    room = rest.partition(".")[0]
    return room if room in MAY_IMPORT else "strata"


def direction_faults(tree: ast.AST, path: Path) -> Iterator[str]:
    room = room_of(path)
    if room not in MAY_IMPORT:
        yield f"{path}: the room {room!r} has no row in MAY_IMPORT"
        return
    for line, name in imports(tree, path):
        target = imported_room(name)
        if target not in {None, room} | MAY_IMPORT[room]:
            yield f"{path}:{line}: {room} must not import {name}"


def purity_faults(tree: ast.AST, path: Path) -> Iterator[str]:
    for line, name in imports(tree, path):
        top, _, rest = name.partition(".")
        known = top in sys.stdlib_module_names | CORE_LIBRARIES | {"strata"}
        numpy_impure = top == "numpy" and rest.partition(".")[0] in NUMPY_IMPURE
        if not known or top in IMPURE_MODULES or numpy_impure:
            yield f"{path}:{line}: core must not import {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner, name = ast.unparse(node.value), node.attr
            clock = f"{owner.rpartition('.')[2]}.{name}" in CLOCK_READS
            if clock or (owner in {"np", "numpy"} and name in NUMPY_IMPURE):
                yield f"{path}:{node.lineno}: core must not use {owner}.{name}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in IMPURE_CALLS:
            yield f"{path}:{node.lineno}: core must not call {ast.unparse(node.func)}"


def environment_faults(tree: ast.AST, path: Path) -> Iterator[str]:
    readers = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
    used = [
        (node.lineno, ast.unparse(node))
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    ]
    for line, name in [*used, *imports(tree, path)]:
        if name in readers:
            yield f"{path}:{line}: only config reads or writes the environment"


def faults(source: str, path: Path) -> list[str]:
    tree = ast.parse(source)
    found = list(direction_faults(tree, path))
    if room_of(path) == "core":
        found += purity_faults(tree, path)
    if room_of(path) != "config":
        found += environment_faults(tree, path)
    return found


def test_the_source_keeps_the_layers():
    files = sorted(SRC.rglob("*.py"))
    assert files
    assert [fault for file in files for fault in faults(file.read_text("utf-8"), file)] == []


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("strata/core/x.py", "import asyncio"),
        ("strata/core/x.py", "from time import monotonic"),
        ("strata/core/x.py", "import pandas"),
        ("strata/core/x.py", "import datetime\ndatetime.datetime.now()"),
        ("strata/core/x.py", "from datetime import date\ndate.today()"),
        ("strata/core/x.py", "import numpy as np\nnp.random.rand()"),
        ("strata/core/x.py", "from numpy import random"),
        ("strata/core/x.py", "import numpy.random"),
        ("strata/core/x.py", "def f():\n    open('a')"),
        ("strata/core/x.py", "print('a')"),
        ("strata/core/x.py", "from strata.config import Settings"),
        ("strata/core/x.py", "from strata import config"),
        ("strata/core/x.py", "from ..store import sqlite"),
        ("strata/core/deep/x.py", "from ...store import sqlite"),
        ("strata/errors.py", "import strata.core.events"),
        ("strata/store/sqlite.py", "from strata.wire import convert"),
        ("strata/store/sqlite.py", "from strata import __version__"),
        ("strata/sdk/run.py", "from strata.coordinator.engine.engine import Engine"),
        ("strata/coordinator/engine/engine.py", "from strata.sim import clock"),
        ("strata/coordinator/engine/engine.py", "import os\nos.environ['A']"),
        ("strata/cli/sim.py", "from os import getenv"),
        ("strata/sdk/x.py", "import os\nos.putenv('A', '1')"),
        ("strata/newroom/x.py", "import json"),
    ],
)
def test_the_checker_sees_a_fault(file, source):
    assert faults(source, SRC / file)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("strata/core/x.py", "import json\nimport numpy as np\nfrom strata.errors import Fenced"),
        ("strata/core/x.py", "from . import events\nfrom .events import Fact"),
        ("strata/core/x.py", "from datetime import datetime\ndatetime.fromtimestamp(now)"),
        ("strata/config.py", "import os\nos.environ['A']"),
        ("strata/sim/x.py", "from strata.coordinator import engine"),
        ("strata/cli/sim.py", "from strata import __version__, sim"),
    ],
)
def test_the_checker_accepts_what_is_allowed(file, source):
    assert faults(source, SRC / file) == []
