"""Shows the coordinator a few of the samples that are being trained, now and then.

The samples are read once more, raw, by a thread of its own: neither training nor the worker's beats
are held up, and what is shown is what was read, whatever a transform makes of it.

Samples of a torch Dataset are objects, which a second thread must not read. Of these the first rows
of the batch are shown as the script gets it; they are copied when a preview is due.

Each sample is sent with its position in the order; the coordinator says from it which shard of the
epoch the sample is in, and whose that is.
"""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread

import msgspec

from strata.data.base import Columns
from strata.data.preview import features_and_label, first_rows
from strata.data.steps import Ordered, Readable
from strata.data.streams import Stream, Taken
from strata.data.torch_dataset import TorchSamples
from strata.errors import StrataError
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
SAMPLES = 4
MAX_BYTES = 48 << 10


class Previewing:
    """Sends a preview every `INTERVAL_S` while new batches are taken."""

    def __init__(
        self,
        name: str,
        dataset: Readable,
        columns: Sequence[str],
        shard_size: int,
        tell: Callable[[pb.Preview], None],
    ) -> None:
        self._name, self._dataset, self._columns = name, dataset, list(columns)
        self._shard_size = shard_size
        self._tell = tell
        self._shown: Taken | None = None
        self._due_s = 0.0
        self._thread: Thread | None = None
        self._from_batches = isinstance(dataset, TorchSamples)
        self._rows: tuple[Taken, Columns] | None = None

    def see(self, batch: object, taken: Taken) -> None:
        """A batch is handed out. Called by the training thread."""
        if self._from_batches and time.monotonic() >= self._due_s:
            self._rows = (taken, first_rows(batch, len(taken.samples), SAMPLES))

    def tick(self, stream: Stream, lanes: Sequence[int], shift: int) -> None:
        """Show what was taken from a stream, if that is new and it is time.

        `lanes` are those of this worker. `shift` is what to add to a step of the run to get the
        dataset's; the run's step is shown.
        """
        taken = stream.taken
        if self._from_batches:
            taken = None if self._rows is None else self._rows[0]
        now_s = time.monotonic()
        busy = self._thread is not None and self._thread.is_alive()
        if taken is None or taken is self._shown or now_s < self._due_s or busy:
            return
        self._shown, self._due_s = taken, now_s + INTERVAL_S
        order, step = stream.order, taken.step - shift
        self._thread = Thread(
            target=self._show,
            args=(taken, order, lanes, step),
            name="strata-preview",
            daemon=True,
        )
        self._thread.start()

    def _show(self, taken: Taken, order: Ordered, lanes: Sequence[int], step: int) -> None:
        try:
            positions = positions_of(taken, order, lanes)
            samples = self._samples(taken, positions, step) if positions else []
        except StrataError as error:
            log.debug("no preview of %s: %s", self._name, error)
            return
        while samples and len(encoded := msgspec.json.encode(samples)) > MAX_BYTES:
            samples.pop()
        if samples:
            self._tell(pb.Preview(dataset_id=self._name, samples=encoded.decode()))

    def _samples(self, taken: Taken, positions: list[int], step: int) -> list[dict[str, object]]:
        rows = taken.samples[:SAMPLES]
        seen = self._rows
        if seen is not None and seen[0] is taken:
            values = seen[1]
        elif self._from_batches:
            return []  # another batch has been handed out since
        else:
            values, _ = self._dataset.gather(rows, self._columns, lambda skipped: None)
        return [
            {
                "id": str(row),
                "features": features,
                "label": label,
                "shard_id": int(row) // self._shard_size,
                "step": step,
                "position": position,
            }
            for row, position, (features, label) in zip(
                rows, positions, features_and_label(values), strict=False
            )
        ]


def positions_of(taken: Taken, order: Ordered, lanes: Sequence[int]) -> list[int]:
    """The positions of the first samples of a batch; empty if they are not those of the lanes.

    The samples of a batch are those of its lanes in their order, except for some that could not be
    read. After a change of lanes the batch may be one of the lanes before.
    """
    positions = order.positions(taken.step, taken.step + 1, lanes)[0]
    owned = zip(positions.tolist(), order.samples(positions).tolist(), strict=True)
    wanted = taken.samples[:SAMPLES].tolist()
    found: list[int] = []
    for position, sample in owned:
        if len(found) < len(wanted) and sample == wanted[len(found)]:
            found.append(position)
    return found if len(found) == len(wanted) else []
