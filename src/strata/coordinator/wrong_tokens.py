"""Limits how many requests with a wrong token one network gets an ordinary answer to.

Above the limit a wrong token is answered with `Overloaded` and a time to wait, and the log names
the network. A right token is accepted at any rate, also from a network that is above its limit:
otherwise one client with an old token could lock out all clients of its host, or all that come
through one proxy. So the limit keeps guesses cheap and visible; what makes guessing hopeless is the
length of the token, and `strata up` refuses short ones where other machines can reach it.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from strata.errors import Overloaded, StrataError
from strata.wire.grpc.connection_budget import network_of

log = logging.getLogger(__name__)

MIN_TOKEN_CHARS = 16
LOG_INTERVAL_S = 60.0


class WrongTokenLimits(Struct, frozen=True, kw_only=True):
    """Wrong tokens of one network: `burst` at once, then `per_s`; and the networks remembered."""

    burst: int = 20
    per_s: float = 1.0
    networks: int = 4096


class Tally(Struct):
    """The wrong tokens of one network: what is left of its burst, and those not yet logged."""

    left: float
    at_s: float
    unlogged: int = 0
    log_at_s: float = float("-inf")


class WrongTokens:
    """Counts wrong tokens per network; the network heard from least recently is forgotten first."""

    def __init__(self, clock: Callable[[], float], limits: WrongTokenLimits | None = None) -> None:
        self._clock = clock
        self._limits = limits or WrongTokenLimits()
        self._tallies: OrderedDict[str, Tally] = OrderedDict()

    def answer(self, address: str, refusal: StrataError) -> StrataError:
        """Count one wrong token; returns the error to answer with."""
        network, now_s, limits = network_of(address), self._clock(), self._limits
        tally = self._tallies.pop(network, None) or Tally(left=limits.burst, at_s=now_s)
        self._tallies[network] = tally
        if len(self._tallies) > limits.networks:
            self._tallies.popitem(last=False)
        tally.left = min(tally.left + (now_s - tally.at_s) * limits.per_s, limits.burst)
        tally.at_s = now_s
        if tally.left >= 1.0:
            tally.left -= 1.0
            return refusal
        self._log(tally, network, now_s)
        wait_s = (1.0 - tally.left) / limits.per_s
        return Overloaded(
            f"too many requests with a wrong token came from {network}",
            hint=f"set STRATA_TOKEN to the coordinator's token, and wait {wait_s:.0f} s",
            retry_after_s=wait_s,
        )

    def _log(self, tally: Tally, network: str, now_s: float) -> None:
        tally.unlogged += 1
        if now_s - tally.log_at_s >= LOG_INTERVAL_S:
            text = "%d requests with a wrong token from %s were above the limit of %g per second"
            log.warning(text, tally.unlogged, network, self._limits.per_s)
            tally.unlogged, tally.log_at_s = 0, now_s
