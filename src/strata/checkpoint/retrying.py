"""Writing again what a storage did not take: the capture is still there."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from strata.errors import Unavailable

RETRY_DELAYS_S = (0.5, 2.0)

Result = TypeVar("Result")


def retried(attempt: Callable[[], Result], again: Callable[[Unavailable], None]) -> Result:
    """Tries twice more, a little later each time; `again` hears before each why that is."""
    for delay_s in RETRY_DELAYS_S:
        try:
            return attempt()
        except Unavailable as error:
            again(error)
            time.sleep(delay_s * random.uniform(0.5, 1.5))
    return attempt()
