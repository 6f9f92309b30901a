"""Parts that are installed on demand: what to do when one is not there."""

import importlib
from types import ModuleType

from strata.errors import NotFound


def needed(module: str, library: str, extra: str) -> ModuleType:
    """A module that needs an extra; without it, which one to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != library:
            raise
        raise NotFound(
            f"{library} is not installed", hint=f"pip install 'strata-runtime[{extra}]'"
        ) from error
