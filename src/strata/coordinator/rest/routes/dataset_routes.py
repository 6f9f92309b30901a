"""Endpoints of datasets: list, register, shards, preview."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, JSONBody, QueryParameter

from strata.coordinator.background import measured
from strata.coordinator.rest.error_responses import READS, READS_ONE, WRITES
from strata.coordinator.rest.paging import (
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
from strata.coordinator.rest.ports import Api, TheApi
from strata.coordinator.rest.request_models import RegisterDatasetRequest
from strata.coordinator.rest.response_models import DatasetDetail, Sample, ShardResponse
from strata.coordinator.rest.views import shard_views, state_views
from strata.core.datasets.dataset_rules import RegisterDataset
from strata.core.state import Dataset, DatasetSpec
from strata.errors import InvalidArgument

MAX_SHARDS = 10_000_000

OfTask = Annotated[
    str,
    QueryParameter(
        max_length=200, description="Shards of this task; default: the newest that trains on it."
    ),
]
OfEpoch = Annotated[
    int | None, QueryParameter(ge=0, description="Number of the epoch; default: the present one.")
]
PreviewLimit = Annotated[
    int, QueryParameter(ge=1, le=100, description="Maximum number of samples.")
]


@get("/datasets", responses=READS, response_headers=HEADERS)
async def list_datasets(
    api: TheApi, limit: Limit = DEFAULT_LIMIT, cursor: Cursor = ""
) -> Response[list[DatasetDetail]]:
    """Datasets by name."""
    async with api.engine.settled() as state:
        found = page(state.datasets.values(), by_id, limit, cursor)
        shown = within([state_views.dataset_detail(dataset) for dataset in found.items])
        cut = len(shown) < len(found.items)
        following = pack(by_id(shown[-1])) if cut else found.next_cursor
        return paged(shown, found.total, following)


@post("/datasets", responses=WRITES)
async def register_dataset(api: TheApi, data: JSONBody[RegisterDatasetRequest]) -> DatasetDetail:
    """Register a dataset; repeating the same registration changes nothing."""
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
            f"{spec.shard_size} are {spec.shard_count} shards",
            hint="omit shard_count: it follows from total_samples and shard_size",
        )
    if spec.shard_size and spec.shard_count > MAX_SHARDS:
        raise InvalidArgument(
            f"shard_size {spec.shard_size} gives {spec.shard_count} shards; the limit is "
            f"{MAX_SHARDS}",
            hint="choose a larger shard_size",
        )
    known = await api.engine.submit(RegisterDataset(dataset=dataset_id, spec=spec))
    assert isinstance(known, Dataset)
    return state_views.dataset_detail(known)


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
    """The name to store; a name equal to the id is stored as no name."""
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
    """Shards of an epoch: sample ranges, states and assigned workers."""
    first = shard_views.first_shard(cursor)
    async with api.engine.settled() as state:
        dataset = state.dataset(dataset_id)
        task = shard_views.feeding_task(state, dataset, task_id)
        listed = shard_views.ShardList(dataset, task, epoch)
        following = str(first + limit) if first + limit < listed.total else ""
        return paged(listed.page(first, limit), listed.total, following)


@get("/datasets/{dataset_id:str}/preview", responses=READS_ONE)
async def preview_dataset(
    api: TheApi, dataset_id: FromPath[str], limit: PreviewLimit = 20
) -> list[Sample]:
    """Samples that workers process now, with their shards; empty if no worker sends any."""
    async with api.engine.settled() as state:
        return api.previews.placed(state, state.dataset(dataset_id), limit)
