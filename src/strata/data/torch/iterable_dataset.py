"""A torch IterableDataset as the dataset of a run, divided by lanes.

Sample k of an epoch's stream belongs to the epoch's step k // G and to lane k mod C. An epoch has
`STREAM_SAMPLES` positions in the order, far more than samples, so that the epoch of a step can be
computed although the length of the stream is not known. Every worker reads the whole stream and
keeps the samples of its lanes, so all workers see the same end, and the order is the stream's own
for any number of workers.

Guarantees and costs:

- The stream must be the same each time it is read. Samples may be random if they draw from the
  global generators of `random`, `numpy.random` and PyTorch (CPU), which are seeded from the run's
  seed, the epoch and the sample's position. A stream whose first samples differ when it is read
  again raises an error. When a pass is read again (after a rollback, or a resume with a state),
  each step is compared with what was read before, and a difference is an error. A different stream
  in a new process that has no such state is noticed only by its first samples.
- Going back, or starting in the middle, reads the epoch from its beginning and drops what comes
  before. The last few steps are kept, so repeating a step costs nothing.
- The length is not known before the end. The samples after the last complete step are left out,
  with a warning unless `drop_last` is set.
- One process reads the stream: `num_workers` is 0 or 1. A dataset that divides itself by
  `get_worker_info` returns all of its samples there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.state import STREAM_SAMPLES
from strata.data.torch.loader_adapter import data_loader
from strata.data.torch.loader_engine import started, unchanged
from strata.data.torch.map_dataset import PROBES, TorchSamples, chosen_name, error_line
from strata.data.torch.sample_digests import sample_digest, type_name
from strata.data.torch.sample_seeds import restored_generators, seed_generators
from strata.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from strata.data.torch.iterable_engine import StreamLoading


class TorchStream(TorchSamples):
    """The samples of an IterableDataset in their order; made by `open_torch_stream`."""

    def __init__(self, name: str, samples: Any, *, fingerprint: str, seed: int) -> None:
        super().__init__(
            name, samples, STREAM_SAMPLES, fingerprint=fingerprint, seed=seed, shuffle=False
        )

    def read(self, epoch: int) -> Iterator[Any]:
        """The samples of an epoch from its beginning. The caller restores the generators."""
        if callable(set_epoch := getattr(self.samples, "set_epoch", None)):
            set_epoch(epoch)
        key = f"epoch {epoch}"
        words = self.words(np.array([-1]), key)
        seed_generators(words[0])
        position = 0
        try:
            iterator = iter(self.samples)
            while True:
                if position % _SEEDS == 0:
                    words = self.words(np.arange(position, position + _SEEDS), key)
                seed_generators(words[position % _SEEDS])
                try:
                    sample = next(iterator)
                except StopIteration:
                    return
                yield sample
                position += 1
        except (MemoryError, GeneratorExit):
            raise
        except Exception as error:
            failure = Corrupt(
                f"dataset {self.name!r}: stream sample {position} failed: {error_line(error)}",
                hint="fix the dataset; a stream cannot leave samples out",
            )
            raise failure from error


_SEEDS = 1_024


def open_torch_stream(
    dataset: Any, *, seed: int, name: str = "", loading: "StreamLoading | None" = None
) -> TorchStream:
    """An IterableDataset under a name, by default made of its type and fingerprint.

    The fingerprint covers the type's name and the first few samples.
    """
    label = name or type(dataset).__name__
    options = {} if loading is None else loading.probe_options()
    reading = data_loader(
        _FirstSamples(label, dataset),
        batch_size=None,
        sampler=[0],
        collate_fn=unchanged,
        **options,
    )
    with restored_generators():
        (found,) = started(reading)
    if isinstance(found, Corrupt):
        raise found
    first, again = found
    if not first:
        raise InvalidArgument(
            f"{label} has no samples", hint="give a stream with at least one sample"
        )
    if first != again:
        raise InvalidArgument(
            f"{label} returns other samples when it is read again, so workers would not agree on "
            "its samples",
            hint="start the stream again in __iter__, and draw random numbers from random, "
            "numpy.random or torch, which the run seeds",
        )
    fingerprint = sample_digest([type_name(dataset), *first])
    name = name or chosen_name(dataset, fingerprint, seed, shuffle=False)
    return TorchStream(name, dataset, fingerprint=fingerprint, seed=seed)


class _FirstSamples:
    """The digests of the first samples of a stream, read twice."""

    def __init__(self, name: str, samples: Any) -> None:
        self._stream = TorchStream(name, samples, fingerprint="", seed=0)
        self.samples = samples

    def __getitem__(self, _: int) -> list[list[str]] | Corrupt:
        try:
            return [self._digests() for _ in range(2)]
        except Corrupt as error:
            return error

    def _digests(self) -> list[str]:
        read = self._stream.read(0)
        return [sample_digest(sample) for sample, _ in zip(read, range(PROBES), strict=False)]
