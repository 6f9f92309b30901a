"""What `wandb.log` takes, as what `run.log` of Strata takes."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, SupportsFloat, cast

import strata
from strata.errors import InvalidArgument
from strata.sdk.record.logged_media import TEXT_BYTES, Loggable, Media

ROOM_BYTES = TEXT_BYTES - 200
"""What a table may take, so that a note about the rest has room."""


def image(data: Any, caption: str | None = None) -> strata.Image:
    """An image: what `strata.Image` takes, a Matplotlib figure, or a tensor with channels first."""
    if hasattr(data, "savefig"):  # a figure, or `matplotlib.pyplot` itself
        buffer = io.BytesIO()
        data.savefig(buffer, format="png")
        data = buffer.getvalue()
    elif hasattr(data, "detach"):
        data = data.detach().cpu()
        if data.ndim == 3 and data.shape[0] in (1, 3, 4):
            data = data.permute(1, 2, 0)
        data = data.float().numpy() if data.is_floating_point() else data.numpy()
    if getattr(data, "ndim", 0) == 3 and data.shape[2] == 1:
        data = data[:, :, 0]
    return strata.Image(data, caption=caption or "")


def histogram(
    sequence: Any = None, np_histogram: tuple[Any, Any] | None = None, num_bins: int = 64
) -> strata.Histogram:
    """A histogram of values, or of counts and edges."""
    if np_histogram is not None:
        return strata.Histogram.of(*np_histogram)
    return strata.Histogram(sequence, bins=num_bins)


class Table:
    """`wandb.Table`: rows of plain values, recorded as a Markdown text.

    Rows that do not fit into a text are left out, and the text says how many.
    """

    def __init__(
        self,
        columns: Sequence[Any] | None = None,
        data: Iterable[Sequence[Any]] | None = None,
        rows: Iterable[Sequence[Any]] | None = None,
        dataframe: Any = None,
    ) -> None:
        if dataframe is not None:
            columns, data = list(dataframe.columns), dataframe.values.tolist()
        given = list(data if data is not None else rows if rows is not None else [])
        width = len(given[0]) if given else 0
        default = ("Input", "Output", "Expected") if not given else range(width)
        self.columns = [str(each) for each in (default if columns is None else columns)]
        self.data: list[list[Any]] = []
        for row in given:
            self.add_data(*row)

    def add_data(self, *row: Any) -> None:
        """Add a row."""
        if len(row) != len(self.columns):
            raise InvalidArgument(
                f"a row has {len(row)} values, but the table has {len(self.columns)} columns",
                hint=f"the columns are {', '.join(self.columns)}",
            )
        if any(isinstance(each, Media) for each in row):
            raise InvalidArgument(
                "a table cannot have images or histograms", hint="log them beside the table"
            )
        self.data.append(list(row))

    def text(self) -> strata.Text:
        """The table as Markdown."""
        lines = [_line(self.columns), _line(["---"] * len(self.columns))]
        size = sum(len(line.encode(errors="replace")) + 1 for line in lines)
        for at, row in enumerate(self.data):
            line = _line([str(each) for each in row])
            size += len(line.encode(errors="replace")) + 1
            if size > ROOM_BYTES:
                lines += ["", f"{len(self.data) - at} of {len(self.data)} rows are left out"]
                break
            lines.append(line)
        return strata.Text("\n".join(lines))


def _line(cells: Iterable[str]) -> str:
    shown = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
    return f"| {' | '.join(shown)} |"


def loggable(data: Mapping[str, Any], above: str = "") -> list[tuple[str, Loggable]]:
    """Values by flat names; what cannot be recorded stays as it is, and `run.log` refuses it."""
    found: list[tuple[str, Loggable]] = []
    for key, value in data.items():
        name = f"{above}{key}"
        if isinstance(value, Mapping):
            found += loggable(value, f"{name}/")
        elif isinstance(value, str):
            found.append((name, strata.Text(value)))
        elif isinstance(value, Table):
            found.append((name, value.text()))
        elif hasattr(value, "savefig"):
            found.append((name, image(value)))
        elif isinstance(value, list | tuple) and value and all(isinstance(v, Media) for v in value):
            found += [(f"{name}/{at}", each) for at, each in enumerate(value)]
        else:
            found.append((name, cast(SupportsFloat, value)))
    return found
