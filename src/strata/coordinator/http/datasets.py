"""Datasets: what is registered, and which shard of it is whose."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from strata.coordinator.http import shards, views
from strata.coordinator.http.faults import READS, READS_ONE, WRITES
from strata.coordinator.http.models import DatasetDetail, RegisterDatasetRequest, ShardResponse
from strata.coordinator.http.paging import (
    DEFAULT_LIMIT,
    HEADERS,
    Cursor,
    Limit,
    by_id,
    pack,
    page,
    paged,
    within,
)
from strata.coordinator.http.ports import Api, TheApi
from strata.coordinator.previews import Sample
from strata.coordinator.scanning import measured
from strata.core.datasets import Dataset, DatasetSpec, RegisterDataset
from strata.errors import InvalidArgument

MAX_SHARDS = 10_000_000

OfTask = Annotated[
    str,
    QueryParameter(max_length=200, description="As this task trains on it; else the newest."),
]
OfEpoch = Annotated[
    int | None, QueryParameter(ge=0, description="Of this epoch; else of the present one.")
]
PreviewLimit = Annotated[int, QueryParameter(ge=1, le=100, description="How many at most.")]


@get("/datasets", responses=READS, response_headers=HEADERS)
async def list_datasets(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[DatasetDetail]]:
    """The registered datasets, by name."""
    async with api.engine.settled() as state:
        found = page(state.datasets.values(), by_id, limit, cursor)
        shown = within([views.dataset_detail(dataset) for dataset in found.items])
        cut = len(shown) < len(found.items)
        following = pack(by_id(shown[-1])) if cut else found.next_cursor
        return paged(shown, found.total, following)


@post("/datasets", responses=WRITES)
async def register_dataset(api: TheApi, data: JSONBody[RegisterDatasetRequest]) -> DatasetDetail:
    """Registers a dataset; repeating the same registration changes nothing."""
    dataset_id = id_of(data)
    asked = DatasetSpec(
        total_samples=data.total_samples,
        shard_size=data.shard_size,
        shuffle=data.shuffle,
        seed=data.seed,
        name=await stored_name(api, dataset_id, data.name),
        path=data.path,
        format=data.format,
        fingerprint=data.fingerprint,
        metadata=data.metadata,
    )
    spec = await measured(dataset_id, asked)
    if data.shard_count is not None and spec.shard_size and data.shard_count != spec.shard_count:
        raise InvalidArgument(
            f"shard_count is {data.shard_count}, but {spec.total_samples} samples in shards of "
            f"{spec.shard_size} make {spec.shard_count}",
            hint="leave shard_count out: it follows from total_samples and shard_size",
        )
    if spec.shard_size and spec.shard_count > MAX_SHARDS:
        raise InvalidArgument(
            f"shard_size {spec.shard_size} makes {spec.shard_count} shards",
            hint=f"choose a larger one: at most {MAX_SHARDS} shards",
        )
    known = await api.engine.submit(RegisterDataset(dataset=dataset_id, spec=spec))
    assert isinstance(known, Dataset)
    return views.dataset_detail(known)


def id_of(data: RegisterDatasetRequest) -> str:
    """The id in a request; `id` and `dataset_id` are the same field."""
    names = {name for name in (data.id, data.dataset_id) if name}
    if len(names) != 1:
        given = f"id is {data.id!r} and dataset_id is {data.dataset_id!r}"
        raise InvalidArgument(
            given if names else "dataset_id is missing", hint="give the dataset one id"
        )
    return names.pop()


async def stored_name(api: Api, dataset_id: str, name: str) -> str:
    """The name to store: a dataset without a name is shown under its id."""
    if name not in ("", dataset_id):
        return name
    async with api.engine.settled() as state:
        known = state.datasets.get(dataset_id)
        stored = known.spec.name if known is not None else ""
    return stored if stored in ("", dataset_id) else name


@get("/datasets/{dataset_id:str}/shards", responses=READS_ONE, response_headers=HEADERS)
async def list_shards(
    api: TheApi,
    dataset_id: FromPath[str],
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = "",
    task_id: OfTask = "",
    epoch: OfEpoch = None,
) -> Response[list[ShardResponse]]:
    """Which samples are in which shard of an epoch, whose it is, and how far."""
    first = shards.first_shard(cursor)
    async with api.engine.settled() as state:
        dataset = state.dataset(dataset_id)
        task = shards.feeding_task(state, dataset, task_id)
        listed = shards.ShardList(dataset, task, epoch)
        following = str(first + limit) if first + limit < listed.total else ""
        return paged(listed.page(first, limit), listed.total, following)


@get("/datasets/{dataset_id:str}/preview", responses=READS_ONE)
async def preview_dataset(
    api: TheApi, dataset_id: FromPath[str], limit: PreviewLimit = 20
) -> list[Sample]:
    """Samples that workers process now, with their shards; empty when no worker sends any."""
    async with api.engine.settled() as state:
        return api.previews.placed(state, state.dataset(dataset_id), limit)
