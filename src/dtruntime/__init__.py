"""The public names of `strata` under the package name that older scripts import."""

from typing import Any

import strata
from strata import *  # noqa: F403
from strata import __version__ as __version__

__all__ = list(strata.__all__)


def __getattr__(name: str) -> Any:
    return getattr(strata, name)
