"""The one place of the coordinator that reads the clock."""

import time

from strata.core.events import Now


def read_clock() -> Now:
    """This moment."""
    return Now(time.time_ns(), time.monotonic_ns())
