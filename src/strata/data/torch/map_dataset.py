"""A map-style torch Dataset as the dataset of a run.

`open_torch_dataset` takes any object with `__len__` and `__getitem__` (and optionally
`__getitems__`) and returns a `TorchDataset`, which a coordinator can register and which
`map_engine` reads. The samples of a step are computed from its number (`core/order`), so the order
is the same for any number of workers and processes, and a resume needs only the step.

Random numbers. Before each sample is read, the global generators of `random`, `numpy.random` and
PyTorch (CPU) are seeded from the run's seed, the dataset's fingerprint and the sample's position in
the order. So a random crop is the same whichever process makes it, and differs in each epoch.
`__getitems__` reads many samples in one call, so the generators are compared afterwards: if the
call drew a random number, its result is discarded and the samples are read one by one. Generators
that a dataset owns itself cannot be seeded; `open_torch_dataset` warns when it sees one.

The fingerprint covers the type's name, the number of samples, the indices of a `Subset`, and the
content of a few samples at fixed positions. It does not cover the other samples.
"""

import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import numpy as np

from strata.core.order import Integers, Order, OrderSpec, mix
from strata.core.state import DatasetSpec
from strata.data.formats.source import Array, Columns
from strata.data.source_dataset import SkippedRow
from strata.data.torch.loader_adapter import data_loader, import_torch
from strata.data.torch.loader_engine import started, unchanged
from strata.data.torch.sample_digests import sample_digest, type_name
from strata.data.torch.sample_seeds import generator_states, restored_generators, seed_generators
from strata.errors import Corrupt, InvalidArgument

if TYPE_CHECKING:
    from strata.data.torch.map_engine import SampleLoading

log = logging.getLogger(__name__)

FORMAT = "torch"
PROBES = 5
_SHARDS = 1_024


class TorchSamples:
    """The common part of both kinds of torch Dataset: samples that are objects, not columns."""

    def __init__(
        self, name: str, samples: Any, total: int, *, fingerprint: str, seed: int, shuffle: bool
    ) -> None:
        self.name, self.fingerprint = name, fingerprint
        self.seed, self.shuffle = seed, shuffle
        self.samples = samples
        self.total_samples = total
        self.shard_size = -(-total // _SHARDS)

    def spec(self) -> DatasetSpec:
        """The description that a coordinator registers."""
        return DatasetSpec(
            total_samples=self.total_samples,
            shard_size=self.shard_size,
            shuffle=self.shuffle,
            seed=self.seed,
            name=self.name,
            format=FORMAT,
            fingerprint=self.fingerprint,
        )

    def order(self, global_batch: int, *, lanes: int = 1) -> Order:
        """The order in which steps of `global_batch` samples train this dataset."""
        return Order(
            OrderSpec(
                total_samples=self.total_samples,
                shard_size=self.shard_size,
                global_batch=global_batch,
                lanes=lanes,
                seed=self.seed,
                fingerprint=self.fingerprint,
                shuffle=self.shuffle,
            )
        )

    def checked_columns(self, columns: Sequence[str] | None) -> list[str]:
        """Raise for any columns: a sample is whatever `__getitem__` returns."""
        if columns is not None:
            raise InvalidArgument(
                f"dataset {self.name!r} is a torch Dataset and has no columns",
                hint="choose the parts of a sample in __getitem__ or in collate_fn",
            )
        return []

    @property
    def forks(self) -> bool:
        """True: whether a fork may read it is up to the Dataset's author."""
        return True

    @property
    def batch(self) -> str:
        """Always "": Strata downloads no files for a torch Dataset."""
        return ""

    def read_for(self, batch: Callable[[], str]) -> None:
        """Ignored: Strata downloads no files for a torch Dataset."""

    def gather(
        self, rows: Integers, columns: Sequence[str], on_skip: Callable[[SkippedRow], None] | None
    ) -> tuple[Columns, Array | None]:
        """Raise: the samples of a torch Dataset are objects, which only `SampleLoading` reads.

        A second thread (a preview) must not call `__getitem__` either, since it may not be
        thread-safe.
        """
        raise InvalidArgument(
            f"dataset {self.name!r} is a torch Dataset, whose samples are not columns of arrays",
            hint="read it with run.loader",
        )

    def words(self, positions: Integers, stream: str = "") -> list[int]:
        """The seed of the random numbers at each position; different for each `stream`."""
        text = f"{self.seed}/{self.fingerprint}/{stream}"
        key = blake2b(text.encode(), digest_size=8).digest()
        words: list[int] = mix(
            np.frombuffer(key, "<u8") ^ mix(positions.astype(np.uint64))
        ).tolist()
        return words


class TorchDataset(TorchSamples):
    """The samples of a map-style Dataset by number; made by `open_torch_dataset`."""

    def __init__(
        self, name: str, samples: Any, *, fingerprint: str, seed: int, shuffle: bool
    ) -> None:
        super().__init__(
            name, samples, len(samples), fingerprint=fingerprint, seed=seed, shuffle=shuffle
        )
        self._reads_bulk = callable(getattr(samples, "__getitems__", None))

    def __len__(self) -> int:
        return self.total_samples

    def read(
        self, positions: Integers, samples: Integers, on_skip: Callable[[SkippedRow], None] | None
    ) -> list[Any]:
        """The samples at some positions of the order, each read with its own random numbers.

        The caller restores the generators. With `on_skip`, a sample that cannot be read is reported
        and left out.
        """
        words = self.words(positions)
        if self._reads_bulk and len(samples):
            found = self._bulk(samples, words[0])
            if found is not None:
                return found
        items = []
        for sample, word in zip(samples.tolist(), words, strict=True):
            seed_generators(word)
            try:
                items.append(self.samples[sample])
            except MemoryError:
                raise
            except Exception as error:
                if on_skip is None:
                    raise self._unreadable(sample, error) from error
                on_skip(
                    SkippedRow(dataset=self.name, file="", row=sample, reason=error_line(error))
                )
        return items

    def _bulk(self, samples: Integers, word: int) -> list[Any] | None:
        """The samples by one call of `__getitems__`; None if they must be read one by one."""
        seed_generators(word)
        before = generator_states()
        try:
            found = list(self.samples.__getitems__(samples.tolist()))
        except MemoryError:
            raise
        except Exception:
            return None  # reading one by one finds the sample that fails
        if len(found) != len(samples):
            raise Corrupt(
                f"dataset {self.name!r}: __getitems__ was asked for {len(samples)} samples and "
                f"returned {len(found)}",
                hint="return one item for each index, in their order",
            )
        if generator_states() != before:
            self._reads_bulk = False
            return None
        return found

    def _unreadable(self, sample: int, error: Exception) -> Corrupt:
        failure = Corrupt(
            f"dataset {self.name!r}: __getitem__({sample}) failed: {error_line(error)}",
            hint='fix the dataset, or leave out such samples with on_error="skip"',
        )
        failure.add_note("".join(traceback.format_exception(error)))
        return failure


def open_torch_dataset(
    dataset: Any,
    *,
    seed: int,
    name: str = "",
    shuffle: bool = True,
    loading: "SampleLoading | None" = None,
) -> TorchDataset:
    """A torch Dataset under a name, by default made of its type and fingerprint.

    A few samples are read for the fingerprint. With a `loading` that has worker processes they are
    read in such a process, so that files which a dataset opens at its first sample are not open in
    the parent of all worker processes.
    """
    _require_map_style(dataset)
    label = name or type(dataset).__name__
    total = len(dataset)
    places = np.unique(np.linspace(0, total - 1, PROBES).astype(np.int64)).tolist()
    options = {} if loading is None else loading.probe_options()
    reading = data_loader(
        _Probes(label, dataset),
        batch_size=None,
        sampler=places,
        collate_fn=unchanged,
        **options,
    )
    with restored_generators():
        probes = list(started(reading))
    for probe in probes:
        if isinstance(probe, Corrupt):
            raise probe
    changing = [place for place, probe in zip(places, probes, strict=True) if probe[0] == ""]
    if changing:
        log.warning(
            "dataset %s: sample %d differs when it is read twice with the same seed, so its "
            "samples depend on which process reads them; draw from random, numpy.random or torch",
            label,
            changing[0],
        )
    fingerprint = _fingerprint(dataset, total, probes)
    name = name or chosen_name(dataset, fingerprint, seed, shuffle=shuffle)
    return TorchDataset(name, dataset, fingerprint=fingerprint, seed=seed, shuffle=shuffle)


def chosen_name(dataset: object, fingerprint: str, seed: int, *, shuffle: bool) -> str:
    """A name that differs for another dataset, seed or order."""
    identity = blake2b(f"{fingerprint}/{seed}/{shuffle}".encode(), digest_size=6).hexdigest()
    return f"{type(dataset).__name__}-{identity}"


def _require_map_style(dataset: Any) -> None:
    data = import_torch("torch.utils.data")
    if isinstance(dataset, data.IterableDataset):
        raise InvalidArgument(
            f"{type(dataset).__name__} is an IterableDataset, which cannot be read by index",
            hint="open it with open_torch_stream",
        )
    for method in ("__len__", "__getitem__"):
        if not hasattr(dataset, method) or isinstance(dataset, Mapping | str | bytes):
            raise InvalidArgument(
                f"{type(dataset).__name__} is not a map-style Dataset: it needs {method} by index",
                hint="give a torch.utils.data.Dataset with __len__ and __getitem__",
            )
    if len(dataset) == 0:
        raise InvalidArgument(
            f"{type(dataset).__name__} has no samples",
            hint="give a dataset with at least one sample",
        )


class _Probes:
    """Digests of single samples: of the content ("" if it changes), and of types and shapes."""

    def __init__(self, name: str, samples: Any) -> None:
        self._dataset = TorchDataset(name, samples, fingerprint="", seed=0, shuffle=False)
        self._dataset._reads_bulk = False
        self.samples = samples

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, place: int) -> tuple[str, str] | Corrupt:
        at = np.array([place], np.int64)
        try:
            (first,), (again,) = (self._dataset.read(at, at, None) for _ in range(2))
        except Corrupt as error:
            return error
        content = sample_digest(first)
        same = content == sample_digest(again)
        return content if same else "", sample_digest(first, content=False)


def _fingerprint(dataset: Any, total: int, probes: Sequence[tuple[str, str]]) -> str:
    digest = blake2b(digest_size=16)
    subset = import_torch("torch.utils.data").Subset
    while isinstance(dataset, subset):
        indices = np.asarray(dataset.indices, np.int64)
        digest.update(f"{type_name(dataset)}/{len(indices)}/".encode() + indices.tobytes())
        dataset = dataset.dataset
    digest.update(f"{type_name(dataset)}/{total}/".encode())
    for content, structure in probes:
        digest.update(f"{content}/{structure}/".encode())
    return digest.hexdigest()


def error_line(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}"[:500]
