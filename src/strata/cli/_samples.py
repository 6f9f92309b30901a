"""The story of a sample, of a step, and of what was read, in words."""

import msgspec
from rich.text import Text

from strata.cli._look import console, count, plain, print_json
from strata.data.dataset import open_spec
from strata.store.base import EventReader
from strata.timeline.contents import compare_contents
from strata.timeline.samples import step_story, trainings_of

FEW = 16


def tell(
    reader: EventReader,
    task: str,
    sample: int | None,
    step: int | None,
    dataset: str,
    *,
    as_json: bool,
) -> int:
    """Answers what was asked about a log; the exit code."""
    if sample is not None:
        return _tell_sample(reader, task, sample, dataset, as_json=as_json)
    if step is not None:
        return _tell_step(reader, task, step, dataset, as_json=as_json)
    return _tell_content(reader, task, as_json=as_json)


def _tell_sample(
    reader: EventReader, task: str, sample: int, dataset: str, *, as_json: bool
) -> int:
    found = trainings_of(reader, task, sample, dataset)
    if as_json:
        print_json([msgspec.json.encode(found)])
        return 0
    out = console()
    out.print(Text(f"sample {count(sample)} was trained {count(len(found))} times"))
    for each in found:
        where = f"epoch {count(each.epoch)}, step {count(each.step)}, lane {each.lane}"
        line = f"  {where}: {plain(each.worker)}, generation {each.generation}"
        void = f" (also in attempt {', '.join(map(str, each.void))}, void)" if each.void else ""
        out.print(Text(line + void), soft_wrap=True)
    return 0


def _tell_step(reader: EventReader, task: str, step: int, dataset: str, *, as_json: bool) -> int:
    story = step_story(reader, task, step, dataset)
    if as_json:
        print_json([msgspec.json.encode(story)])
        return 0
    out = console()
    out.print(Text(f"step {count(step)}: epoch {story.epoch}, generation {story.generation}"))
    for share in story.shares:
        shown = ", ".join(map(str, share.samples[:FEW]))
        more = f" and {count(len(share.samples) - FEW)} more" if len(share.samples) > FEW else ""
        out.print(Text(f"  {plain(share.worker)}: {shown}{more}"), soft_wrap=True)
    return 0


def _tell_content(reader: EventReader, task: str, *, as_json: bool) -> int:
    found = compare_contents(reader, task, lambda name, spec: open_spec(name, spec))
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
            out.print(Text(f"  {plain(one.worker)}: other bytes in step {count(one.step)}"))
    return int(wrong)
