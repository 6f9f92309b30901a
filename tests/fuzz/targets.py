"""The fuzz targets: one module of this folder each.

A target is a module `fuzz_NAME` with two functions:

- `seeds()` returns valid inputs, made by the code that writes the format;
- `check(data)` gives one input to a reader. It returns when the reader kept its promise: the right
  value, or a `StrataError` whose message names what was read. Anything else that is raised is a
  defect. So is a hang, and memory without proportion to the input; `run_target` measures both.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from strata.errors import StrataError

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem.removeprefix("fuzz_") for file in FOLDER.glob("fuzz_*.py"))


class Target(NamedTuple):
    """The functions of a target's module."""

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], None]


def load(name: str) -> Target:
    """Import a target."""
    module = importlib.import_module(f"tests.fuzz.fuzz_{name}")
    return Target(name, module.seeds, module.check)


@contextmanager
def refused_naming(*names: str) -> Iterator[None]:
    """Allow a `StrataError` whose message names all of these."""
    try:
        yield
    except StrataError as error:
        require_naming(error, names)


def require_naming(error: StrataError, names: tuple[str, ...]) -> None:
    """Raise if the message does not name all of these."""
    missing = [name for name in names if name not in str(error)]
    assert error.message, f"{type(error).__name__} has no message"
    assert not missing, f"the error does not name {missing}: {error}"
