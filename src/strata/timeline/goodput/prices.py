"""Prices of a worker's time: by GPU, worker or host, the same for all hosts or different ones."""

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

from msgspec import Struct, field

from strata.errors import InvalidArgument

HOUR_NS = 3_600 * 1_000_000_000
PATTERN = re.compile(r"^([^\w\s.,/+-]{0,3})\s*(\d+(?:\.\d+)?)\s*([A-Z]{3})?\s*/\s*([a-z-]+)$")
HINT = "use 2.49/gpu-hour, 3/worker-hour or 20/host-hour; for one host: name=2.49/gpu-hour"
MAX_PRICES = 1_000
MAX_PRICE = 1e9

Unit: TypeAlias = Literal["gpu-hour", "worker-hour", "host-hour"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class Price(Struct, frozen=True):
    """An amount for an hour of a GPU, a worker or a host."""

    amount: float
    unit: Unit
    currency: str = "$"


class Prices(Struct, frozen=True):
    """One price for all hosts, and other prices for some hosts."""

    text: str = ""
    common: Price | None = None
    of_host: dict[str, Price] = field(default_factory=dict)

    @property
    def given(self) -> bool:
        """Whether there is any price."""
        return self.common is not None or bool(self.of_host)

    @property
    def currency(self) -> str:
        """The sign of the currency, the same for all prices."""
        found = [self.common, *self.of_host.values()]
        return next((price.currency for price in found if price is not None), "")

    def at(self, host: str) -> Price | None:
        """The price of a host."""
        return self.of_host.get(host, self.common)


def parse_prices(text: str) -> Prices:
    """Read prices such as `2.49/gpu-hour` or `host-a=3/gpu-hour,1.10/gpu-hour`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MAX_PRICES:
        raise InvalidArgument(f"the price has {len(parts)} parts", hint=f"use at most {MAX_PRICES}")
    common: Price | None = None
    of_host: dict[str, Price] = {}
    for part in parts:
        host, named, amount = part.rpartition("=")
        price = _price(amount.strip())
        if named and host.strip():
            of_host[host.strip()] = price
        elif named or common is not None:
            raise InvalidArgument(f"{text!r} has two prices without a host", hint=HINT)
        else:
            common = price
    prices = Prices(text, common, of_host)
    signs = {price.currency for price in (common, *of_host.values()) if price is not None}
    if len(signs) > 1:
        raise InvalidArgument(f"{text!r} mixes currencies", hint="use one currency for all prices")
    return prices


def _price(text: str) -> Price:
    found = PATTERN.match(text)
    if found is None or found[4] not in UNITS:
        raise InvalidArgument(f"{text!r} is not a price", hint=HINT)
    amount = float(found[2])
    if not math.isfinite(amount) or amount > MAX_PRICE:
        raise InvalidArgument(f"the price {text!r} is too high", hint=HINT)
    unit = next(unit for unit in UNITS if unit == found[4])
    sign = f"{found[3]} " if found[3] else found[1] or "$"
    return Price(amount, unit, sign)


def money(currency: str, cost: float | None) -> str:
    """An amount with its currency; empty without one."""
    if cost is None:
        return ""
    digits = 2 if cost >= 0.01 or cost == 0 else 4
    return f"{currency}{cost:,.{digits}f}"


class Host(Struct, frozen=True):
    """Where a worker runs, and its number of GPUs; -1 if it never registered."""

    name: str = ""
    gpus: int = -1


class HostShares:
    """The time of a host, divided equally among the workers on it at each moment."""

    def __init__(self, stays: Iterable[tuple[str, int, int]]) -> None:
        edges = defaultdict[str, dict[int, int]](dict)
        for host, from_ns, to_ns in stays:
            edges[host][from_ns] = edges[host].get(from_ns, 0) + 1
            edges[host][to_ns] = edges[host].get(to_ns, 0) - 1
        self._moments: dict[str, list[int]] = {}
        self._sums: dict[str, list[float]] = {}
        self._counts: dict[str, list[int]] = {}
        for host, changes in edges.items():
            moments, sums, counts, present, total = sorted(changes), [], [], 0, 0.0
            for at, moment in enumerate(moments):
                if at and present:
                    total += (moment - moments[at - 1]) / present
                present += changes[moment]
                sums.append(total)
                counts.append(present)
            self._moments[host], self._sums[host], self._counts[host] = moments, sums, counts

    def of(self, host: str, from_ns: int, to_ns: int) -> float:
        """One worker's share of the nanoseconds of a host."""
        return self._until(host, to_ns) - self._until(host, from_ns)

    def _until(self, host: str, at_ns: int) -> float:
        moments = self._moments.get(host, [])
        at = bisect_right(moments, at_ns) - 1
        if at < 0:
            return 0.0
        present = self._counts[host][at]
        return self._sums[host][at] + ((at_ns - moments[at]) / present if present else 0.0)


class Meter:
    """Computes the cost of spans of a worker's time; remembers what it could not price."""

    def __init__(self, prices: Prices, shares: HostShares) -> None:
        self.prices = prices
        self._shares = shares
        self.given = prices.given
        self._without: dict[str, int] = {}

    def cost(self, host: Host, from_ns: int, to_ns: int) -> float | None:
        """The cost of a span; None if it has no price, which `notes` then says."""
        price = self.prices.at(host.name)
        if price is None:
            self._missing("have no price: they ran on a host without one", to_ns - from_ns)
            return None
        if price.unit == "worker-hour":
            return price.amount * (to_ns - from_ns) / HOUR_NS
        if price.unit == "host-hour":
            return price.amount * self._shares.of(host.name, from_ns, to_ns) / HOUR_NS
        if host.gpus <= 0:
            why = "were on workers that registered no GPU, so a price per GPU-hour does not apply"
            if host.gpus < 0:
                why = "have no price: the worker never registered, so its GPUs are unknown"
            self._missing(why, to_ns - from_ns)
            return None
        return price.amount * host.gpus * (to_ns - from_ns) / HOUR_NS

    def _missing(self, why: str, spent_ns: int) -> None:
        self._without[why] = self._without.get(why, 0) + spent_ns

    def notes(self) -> list[str]:
        """Sentences on the time that has no price."""
        return [
            f"{spent_ns / 1e9:,.1f} worker-seconds {why}" for why, spent_ns in self._without.items()
        ]
