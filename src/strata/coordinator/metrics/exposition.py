"""Writer of Prometheus' text format.

Written by hand because the page is rendered on the coordinator's event loop, where every worker
waits for it: with 10,000 workers of 8 GPUs (16,174 samples) it takes 11 ms of CPU, rendering the
same samples with `prometheus_client` 71 ms (benchmarks/bench_metrics_page.py). Tests check the
format with `promtool check metrics` and a real Prometheus.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from strata.core.metrics.sliding_windows import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Number: TypeAlias = int | float
_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Exposition:
    """A page of metric families; families without samples are omitted."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(
        self,
        kind: Kind,
        name: str,
        text: str,
        samples: Iterable[tuple[str, Number | None]],
    ) -> None:
        """Add a family; samples are pairs of `labels(...)` and a value, None values are omitted."""
        shown = [f"{name}{tags} {value}" for tags, value in samples if value is not None]
        if shown:
            self._begin(kind, name, text)
            self._lines.extend(shown)

    def one(self, kind: Kind, name: str, text: str, value: Number | None) -> None:
        """Add a family of one sample without labels."""
        self.add(kind, name, text, [("", value)])

    def by(
        self, kind: Kind, name: str, text: str, label: str, values: Iterable[tuple[str, Number]]
    ) -> None:
        """Add a family with one label."""
        self.add(kind, name, text, [(labels(**{label: of}), value) for of, value in values])

    def histogram(self, name: str, text: str, histogram: Histogram) -> None:
        """Add a histogram, also before its first measurement, so that rates start at 0."""
        self._begin("histogram", name, text)
        below = 0
        for bound, count in zip(histogram.bounds, histogram.counts, strict=False):
            below += count
            self._lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        count = histogram.count
        self._lines.append(f'{name}_bucket{{le="+Inf"}} {count}')
        self._lines.append(f"{name}_sum {histogram.sum}")
        self._lines.append(f"{name}_count {count}")

    def _begin(self, kind: Kind, name: str, text: str) -> None:
        self._lines.append(f"# HELP {name} {text}")
        self._lines.append(f"# TYPE {name} {kind}")

    def text(self) -> str:
        """The page; characters that UTF-8 cannot encode are replaced."""
        return ("\n".join(self._lines) + "\n").encode("utf-8", "replace").decode()


def labels(**values: str) -> str:
    """Labels as written after a metric's name."""
    return "{" + ",".join([f'{name}="{escaped(text)}"' for name, text in values.items()]) + "}"


def escaped(text: str) -> str:
    """Escape a label value."""
    plain = "\\" not in text and '"' not in text and "\n" not in text
    return text if plain else text.translate(_ESCAPES)


def with_zeros(values: dict[str, int], names: Sequence[str]) -> list[tuple[str, int]]:
    """The values by name, with 0 for missing `names`, so that rates start at 0."""
    rest = [name for name in values if name not in names]
    return [(name, values.get(name, 0)) for name in [*names, *rest]]
