"""Send a few of the samples in training to the coordinator from time to time, for the preview.

A separate thread reads the samples again, raw, so neither training nor heartbeats wait for it, and
the preview shows the data before a transform.

A second thread must not read a torch Dataset. Of those the first rows of the batch are sent as the
script gets them; they are copied when a preview is due.

Each sample is sent with its position in the order; the coordinator derives the shard and its owner
from it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Thread

import msgspec

from strata.data.formats.source import Columns
from strata.data.reading.sample_preview import features_and_label, first_rows
from strata.data.reading.step_reader import BatchRecord, BatchStream, Ordered, Readable
from strata.data.torch.map_dataset import TorchSamples
from strata.errors import StrataError
from strata.wire.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)

INTERVAL_S = 5.0
SAMPLES = 4
MAX_BYTES = 48 << 10


class SamplePreview:
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
        self._shown: BatchRecord | None = None
        self._due_s = 0.0
        self._thread: Thread | None = None
        self._from_batches = isinstance(dataset, TorchSamples)
        self._rows: tuple[BatchRecord, Columns] | None = None

    def see(self, batch: object, taken: BatchRecord) -> None:
        """Note a batch that was returned. Called by the training thread."""
        if self._from_batches and time.monotonic() >= self._due_s:
            self._rows = (taken, first_rows(batch, len(taken.samples), SAMPLES))

    def tick(self, stream: BatchStream, lanes: Sequence[int], shift: int) -> None:
        """Send a preview of a stream's newest batch if one is due.

        `lanes` are those of this worker. `shift` is added to a step of the run to get the dataset's
        step; the preview contains the run's step.
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

    def _show(self, taken: BatchRecord, order: Ordered, lanes: Sequence[int], step: int) -> None:
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

    def _samples(
        self, taken: BatchRecord, positions: list[int], step: int
    ) -> list[dict[str, object]]:
        rows = taken.samples[:SAMPLES]
        seen = self._rows
        if seen is not None and seen[0] is taken:
            values = seen[1]
        elif self._from_batches:
            return []  # another batch was returned since
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


def positions_of(taken: BatchRecord, order: Ordered, lanes: Sequence[int]) -> list[int]:
    """The positions of the first samples of a batch; empty if they are not those of the lanes.

    The samples of a batch are those of its lanes, in order, without those that could not be
    read. After a change of lanes the batch may still be one of the previous lanes.
    """
    positions = order.positions(taken.step, taken.step + 1, lanes)[0]
    owned = zip(positions.tolist(), order.samples(positions).tolist(), strict=True)
    wanted = taken.samples[:SAMPLES].tolist()
    found: list[int] = []
    for position, sample in owned:
        if len(found) < len(wanted) and sample == wanted[len(found)]:
            found.append(position)
    return found if len(found) == len(wanted) else []
