"""Endpoints of goodput: where the workers' time went, and what it cost."""

from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from strata.coordinator.rest.error_responses import READS_ONE
from strata.coordinator.rest.views.past_state import TheArchive, ThePast
from strata.timeline.goodput.goodput_answers import GoodputAnswer, RunsGoodput
from strata.timeline.goodput.prices import parse_prices

Text = Annotated[str, QueryParameter(max_length=400)]
PriceText = Annotated[
    str,
    QueryParameter(
        max_length=4_000,
        description="Such as 2.49/gpu-hour, 3/worker-hour, 20/host-hour or host-a=3/gpu-hour; "
        "default: the setting `price`.",
    ),
]


@get("/timeline/goodput", responses=READS_ONE)
async def get_goodput(
    past: ThePast, archive: TheArchive, task: Text = "", price: PriceText = ""
) -> GoodputAnswer:
    """What the workers' time of a task was spent on, by class, over time and by cause.

    Without a task: the one whose worker registered last.
    """
    prices = parse_prices(price or archive.price)
    return await past.ask(lambda queries: queries.goodput(task, prices))


@get("/timeline/goodput/runs", responses=READS_ONE)
async def get_runs_goodput(archive: TheArchive, price: PriceText = "") -> RunsGoodput:
    """The same over the present log and the newest archived runs, by run, week, host and cause."""
    return await archive.runs_goodput(parse_prices(price or archive.price))


ENDPOINTS = [get_goodput, get_runs_goodput]
