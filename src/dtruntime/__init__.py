"""The public names of `strata` under the package name that older scripts import."""

import strata
from strata import *  # noqa: F403

__all__ = strata.__all__
