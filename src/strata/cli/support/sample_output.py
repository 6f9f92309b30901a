"""Output of `strata audit --sample`, `--step` and `--content`.

The answers come from a log that is opened here, or from a coordinator. Data is read here in both
cases.
"""

from collections.abc import Iterator
from typing import Protocol

import msgspec
from rich.text import Text

from strata.cli.support.rest_client import Api
from strata.cli.support.tables import console, count, plain, print_json
from strata.data.dataset_specs import open_spec
from strata.store.event_store import EventReader
from strata.timeline.audit.batch_contents import (
    ContentAudit,
    ContentPage,
    compare,
    recorded_contents,
)
from strata.timeline.audit.sample_history import StepStory, Trained, step_story, trainings_of

FEW = 16


class Asked(Protocol):
    """A source of answers about the samples of a task."""

    def trainings(self, sample: int, dataset: str) -> list[Trained]: ...

    def story(self, step: int, dataset: str) -> StepStory: ...

    def contents(self, first: int) -> ContentPage: ...


class Log:
    """Answers from a log that is opened here."""

    def __init__(self, reader: EventReader, task: str) -> None:
        self._reader, self._task = reader, task

    def trainings(self, sample: int, dataset: str) -> list[Trained]:
        return trainings_of(self._reader, self._task, sample, dataset)

    def story(self, step: int, dataset: str) -> StepStory:
        return step_story(self._reader, self._task, step, dataset)

    def contents(self, first: int) -> ContentPage:
        return recorded_contents(self._reader, self._task, first)


class Coordinator:
    """Answers from a coordinator."""

    def __init__(self, api: Api, task: str) -> None:
        self._api, self._audit = api, f"/api/tasks/{task}/audit"

    def trainings(self, sample: int, dataset: str) -> list[Trained]:
        answer = self._api.get(f"{self._audit}/sample", sample=sample, dataset=dataset)
        return self._api.decode(answer.body, list[Trained])

    def story(self, step: int, dataset: str) -> StepStory:
        answer = self._api.get(f"{self._audit}/step", step=step, dataset=dataset)
        return self._api.decode(answer.body, StepStory)

    def contents(self, first: int) -> ContentPage:
        answer = self._api.get(f"{self._audit}/contents", first_step=first)
        return self._api.decode(answer.body, ContentPage)


def tell(asked: Asked, sample: int | None, step: int | None, dataset: str, *, as_json: bool) -> int:
    """Print the answer and return the exit code."""
    if sample is not None:
        return _tell_sample(asked.trainings(sample, dataset), sample, as_json=as_json)
    if step is not None:
        return _tell_step(asked.story(step, dataset), as_json=as_json)
    return _tell_content(_compared(asked), as_json=as_json)


def _tell_sample(found: list[Trained], sample: int, *, as_json: bool) -> int:
    if as_json:
        print_json([msgspec.json.encode(found)])
        return 0
    out = console()
    times = "once" if len(found) == 1 else f"{count(len(found))} times"
    out.print(Text(f"sample {count(sample)} was trained {times}"))
    for each in found:
        where = f"epoch {count(each.epoch)}, step {count(each.step)}, lane {each.lane}"
        line = f"  {where}: {plain(each.worker)}, generation {each.generation}"
        void = (
            f" (also in attempt {', '.join(map(str, each.void))}, rolled back)" if each.void else ""
        )
        out.print(Text(line + void), soft_wrap=True)
    return 0


def _tell_step(story: StepStory, *, as_json: bool) -> int:
    if as_json:
        print_json([msgspec.json.encode(story)])
        return 0
    out = console()
    out.print(Text(f"step {count(story.step)}: epoch {story.epoch}, generation {story.generation}"))
    for share in story.shares:
        shown = ", ".join(map(str, share.samples[:FEW]))
        more = f" and {count(len(share.samples) - FEW)} more" if len(share.samples) > FEW else ""
        out.print(Text(f"  {plain(share.worker)}: {shown}{more}"), soft_wrap=True)
    return 0


def _compared(asked: Asked) -> list[ContentAudit]:
    """The comparison of all pages with the data, summed by dataset."""
    found: dict[str, ContentAudit] = {}
    for page in _pages(asked):
        for feed in page.feeds:
            new = compare(feed, lambda name, spec: open_spec(name, spec))
            whole = found.setdefault(feed.dataset, ContentAudit(feed.dataset))
            whole.compared += new.compared
            whole.wrong += new.wrong
    return list(found.values())


def _pages(asked: Asked) -> Iterator[ContentPage]:
    step: int | None = 0
    while step is not None:
        page = asked.contents(step)
        yield page
        step = page.next_step


def _tell_content(found: list[ContentAudit], *, as_json: bool) -> int:
    wrong = any(each.wrong for each in found)
    if as_json:
        print_json([msgspec.json.encode(found)])
        return int(wrong)
    out = console()
    for each in found:
        compared = f"{count(each.compared)} batches compared, {count(len(each.wrong))} differ"
        style = "red" if each.wrong else "green"
        out.print(Text(f"{plain(each.dataset)}: {compared}", style=style), soft_wrap=True)
        for one in each.wrong[:FEW]:
            out.print(
                Text(f"  {plain(one.worker)}: read different bytes in step {count(one.step)}")
            )
    return int(wrong)
