"""The arguments of `torch.utils.data.DataLoader` in a run: which are supported, and what to use
instead of the others.

The run decides which samples a step has, so that all workers agree and a resume is exact. A sampler
therefore chooses between two orders: as stored, or shuffled by the run's seed. Any other sampler
raises an error with an alternative.
"""

from typing import Any, NamedTuple

from strata.data.torch.iterable_dataset import TorchStream, open_torch_stream
from strata.data.torch.iterable_engine import StreamLoading
from strata.data.torch.loader_adapter import import_torch
from strata.data.torch.map_dataset import TorchDataset, open_torch_dataset
from strata.data.torch.map_engine import SampleLoading
from strata.errors import InvalidArgument

_INSTEAD = {
    "DistributedSampler": "leave it out: the run divides every step among its workers; "
    "give shuffle=True for its shuffle",
    "WeightedRandomSampler": "mix datasets by weight with run.batches({dataset: weight, ...}), or "
    "repeat the indices of rare samples with torch.utils.data.Subset",
    "SubsetRandomSampler": "give torch.utils.data.Subset(dataset, indices) and shuffle=True",
}
_OTHER_SAMPLERS = "give shuffle=True or shuffle=False, or torch.utils.data.Subset(dataset, indices)"
_REFUSED = {
    "batch_sampler": "give batch_size; the run decides which samples a step has",
    "generator": "give seed: the order and the random numbers of the samples follow from it",
}


class LoaderPlan(NamedTuple):
    """How `run.loader` reads a dataset: the opened dataset, the engine, and the end of an epoch.

    Without `has_length` the end of an epoch is not known before the engine's stream ends.
    """

    dataset: TorchDataset | TorchStream
    engine: SampleLoading
    drop_tail: bool
    has_length: bool = True


def plan_loader(
    dataset: Any,
    *,
    seed: int,
    name: str = "",
    shuffle: bool | None = None,
    sampler: Any = None,
    drop_last: bool = False,
    **options: Any,
) -> LoaderPlan:
    """Open a torch Dataset, map-style or iterable, with arguments of `DataLoader`.

    `shuffle`, `sampler` and `drop_last` mean the same as there; the order of a shuffle follows from
    `seed`. `collate_fn`, `num_workers`, `pin_memory`, `timeout`, `worker_init_fn`,
    `multiprocessing_context`, `prefetch_factor` and `persistent_workers` are supported.
    """
    for option, instead in _REFUSED.items():
        if options.pop(option, None) is not None:
            raise InvalidArgument(f"run.loader does not support {option}", hint=instead)
    if not options.pop("in_order", True):
        raise InvalidArgument(
            "run.loader does not support in_order=False",
            hint="leave it out: batches come in the order of their steps",
        )
    known = SampleLoading.__init__.__annotations__.keys() - {"return"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise InvalidArgument(
            f"run.loader has no argument {unknown[0]!r}", hint=f"it has {', '.join(sorted(known))}"
        )
    if is_stream(dataset):
        return _plan_stream(dataset, seed, name, shuffle or sampler, bool(drop_last), options)
    engine = SampleLoading(**options)
    shuffled = shuffles(dataset, shuffle, sampler)
    opened = open_torch_dataset(dataset, seed=seed, name=name, shuffle=shuffled, loading=engine)
    return LoaderPlan(dataset=opened, engine=engine, drop_tail=bool(drop_last))


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is read from beginning to end, and not by index."""
    if isinstance(dataset, import_torch("torch.utils.data").IterableDataset):
        return True
    return hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")


def _plan_stream(
    dataset: Any, seed: int, name: str, reordered: Any, drop_last: bool, options: dict[str, Any]
) -> LoaderPlan:
    if reordered:
        raise InvalidArgument(
            f"run.loader cannot shuffle {type(dataset).__name__}, which is read as a stream",
            hint="shuffle in its __iter__, or give a Dataset with __len__ and __getitem__",
        )
    engine = StreamLoading(**options, drop_last=drop_last)
    opened = open_torch_stream(dataset, seed=seed, name=name, loading=engine)
    return LoaderPlan(dataset=opened, engine=engine, drop_tail=True, has_length=False)


def shuffles(dataset: Any, shuffle: bool | None, sampler: Any) -> bool:
    """Whether `shuffle` or `sampler` asks for a shuffled order."""
    if sampler is None:
        return bool(shuffle)
    if shuffle:
        raise InvalidArgument(
            "run.loader was given both shuffle=True and a sampler", hint="give one of the two"
        )
    data, kind = import_torch("torch.utils.data"), type(sampler).__name__
    if type(sampler) not in (data.SequentialSampler, data.RandomSampler):
        raise InvalidArgument(
            f"run.loader does not support the sampler {kind}",
            hint=_INSTEAD.get(kind, _OTHER_SAMPLERS),
        )
    if len(sampler) != len(dataset):
        raise InvalidArgument(
            f"run.loader does not support a {kind} of {len(sampler)} samples for a dataset of "
            f"{len(dataset)}",
            hint="give torch.utils.data.Subset(dataset, indices) as the dataset",
        )
    for option in ("replacement", "generator"):
        if getattr(sampler, option, None):
            raise InvalidArgument(
                f"run.loader does not support the {option} of a {kind}",
                hint="give shuffle=True: each sample once an epoch, in an order by the run's seed",
            )
    return kind == "RandomSampler"
