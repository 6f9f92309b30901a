"""Why is recovery slow or looping; which samples did a failure affect?"""

from strata.core.datasets.dataset_rules import DatasetAttached
from strata.core.datasets.training_loops import LoopOpened, loop_ranges, loops_up_to
from strata.core.generations.recovery import RolledBack, StepsCommitted
from strata.core.task_state import ENDED, Loop
from strata.core.tasks.task_lifecycle import RESTART_LOOP_EXIT_CODE, TaskStateChanged
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting
from strata.timeline.why.investigation import Answer, Link, LogSearch, link, lost_s

SLOW_S = 60.0
LOOP = 3
STAGES = (
    ("GenerationChanged", "detecting the loss and forming a generation"),
    ("GenerationEntered", "waiting for members to enter"),
    ("RecoveryChosen", "choosing the state to continue from"),
    (StepsCommitted.__name__, "loading the model and the first step"),
)


def recovery(search: LogSearch, task: str = "", time_ms: float | None = None) -> Answer:
    """Is recovery slow or looping, and which stage takes the time?"""
    until_ns = search.until(time_ms)
    change = search.last({"TaskStateChanged"}, until_ns, task=task, after="recovering")
    if change is None:
        return Answer(verdict="no", text=f"no: {task or 'no task'} had to recover before that")
    task = change.text("task")
    looping = _loop(search, task, change)
    if looping is not None:
        return looping
    chain, spent = [link(change)], {}
    before = change
    for kind, words in STAGES:
        following = search.first({kind}, before.at_ns + (kind != "GenerationChanged"), task=task)
        ended = _end_of_task(search, task, change)
        if ended is not None and (following is None or following.at_ns > ended.at_ns):
            return _never(change, ended, [*chain, link(ended)])
        if following is None:
            waited_s = lost_s(before.at_ns, search.extent.to_ns)
            text = f"open: it has been {words} for {lasting(waited_s)} at the end of the log"
            cost = Cost(waited_s, 1, f"{lasting(waited_s)} so far")
            return Answer(verdict="open", text=text, chain=chain, cost=cost)
        if kind == StepsCommitted.__name__:
            following = _first_step(search, before, following)
        spent[words] = lost_s(before.at_ns, following.at_ns)
        chain.append(link(following))
        before = following
    total_s = lost_s(change.at_ns, before.at_ns)
    longest = max(spent, key=lambda words: spent[words])
    findings = [f"{words}: {lasting(span)}" for words, span in spent.items()]
    verdict: Verdict = "yes" if total_s > SLOW_S else "no"
    most = f"most of it {longest} ({lasting(spent[longest])})"
    text = f"{verdict}: it took {lasting(total_s)}, {most}"
    cost = Cost(total_s, 1, f"{lasting(total_s)} without a committed step")
    return Answer(verdict=verdict, text=text, chain=chain, cost=cost, findings=findings)


def _end_of_task(search: LogSearch, task: str, change: Record) -> Record | None:
    """The end of the task after a loss, if it ended."""
    later = search.all({TaskStateChanged.__name__}, change.at_ns, task=task)
    return next((each for each in later if each.text("after") in ENDED), None)


def _never(change: Record, ended: Record, chain: list[Link]) -> Answer:
    """The task ended before it recovered: because of a restart loop, or another reason."""
    spent_s = lost_s(change.at_ns, ended.at_ns)
    cost = Cost(spent_s, 1, f"{lasting(spent_s)} until the task ended")
    if ended.get("exit_code") == RESTART_LOOP_EXIT_CODE:
        return Answer(
            verdict="yes", text=f"yes, it loops: {ended.text('reason')}", chain=chain, cost=cost
        )
    text = f"no: it did not recover, the task went to {ended.text('after')}: {ended.text('reason')}"
    return Answer(verdict="no", text=text, chain=chain, cost=cost)


def _first_step(search: LogSearch, chosen: Record, committed: Record) -> Record:
    """The first step after a recovery, by the members' own events: many steps are committed at
    once, so the fact alone would be too late."""
    task, generation = chosen.text("task"), chosen.get("generation")
    until_ns = chosen.at_ns + 1
    entered = search.all({"GenerationEntered"}, None, until_ns, task=task, generation=generation)
    members = {each.text("worker") for each in entered}
    steps = search.timeline.records(chosen.at_ns, committed.at_ns, kinds={"StepFinished"})
    return next((step for step in steps if step.node in members), committed)


def _loop(search: LogSearch, task: str, change: Record) -> Answer | None:
    """Several recoveries without a new step in between; repeated steps are not new."""
    started = search.all(
        {"TaskStateChanged"}, None, change.at_ns + 1, task=task, after="recovering"
    )
    recent = started[-LOOP:]
    if len(recent) < LOOP:
        return None
    steps = search.all({StepsCommitted.__name__}, None, change.at_ns, task=task)
    before = [each for each in steps if each.at_ns < recent[0].at_ns]
    if _furthest(steps) > _furthest(before):
        return None
    chain = [link(each) for each in recent]
    text = f"yes, it loops: {len(started)} recoveries, and no new step between the last {LOOP}"
    lost = lost_s(recent[0].at_ns, change.at_ns)
    return Answer(
        verdict="yes",
        text=text,
        chain=chain,
        cost=Cost(lost, 1, f"{lasting(lost)} without a new step"),
    )


def _furthest(committed: list[Record]) -> int:
    """The highest committed step; -1 without any."""
    bodies = [each.event.body for each in committed]
    return max((body.last for body in bodies if isinstance(body, StepsCommitted)), default=-1)


def samples(search: LogSearch, task: str, time_ms: float | None = None) -> Answer:
    """Which samples were trained twice, lost, or not applied after a failure?"""
    until_ns = search.until(time_ms)
    since_ns = None if time_ms is None else until_ns - 600 * SECOND_NS
    rolled = search.last({RolledBack.__name__}, until_ns + 600 * SECOND_NS, since_ns, task=task)
    unapplied, chain, doubt = _unapplied(search, task, until_ns)
    if rolled is None:
        text = "no sample was trained twice or lost: no committed step was undone"
        if unapplied:
            text += f"; {counted(len(unapplied), 'step')} started and not applied"
        return Answer(verdict="no", text=f"no: {text}", chain=chain, cost=Cost(), findings=doubt)
    body = rolled.event.body
    assert isinstance(body, RolledBack)
    again = search.first({StepsCommitted.__name__}, rolled.at_ns, task=task)
    undone = body.origin - body.to
    samples_undone = counted(_undone_samples(search, rolled, body), "sample")
    undone_steps = f"steps {body.to} to {body.origin - 1} ({samples_undone}) were undone"
    redone = _redone(search, rolled, body)
    chain = [*search.ancestry(rolled), *([link(again)] if again else [])]
    cost = Cost(0.0, 0, f"{counted(undone, 'step')} trained twice, counted once")
    if redone >= body.origin:
        text = f"yes: {undone_steps} and have been trained again; each counts once"
        return Answer(verdict="yes", text=text, chain=chain, cost=cost, findings=doubt)
    left = f"{redone - body.to} of {undone} have been trained again so far"
    return Answer(
        verdict="open", text=f"open: {undone_steps}; {left}", chain=chain, cost=cost, findings=doubt
    )


def _undone_samples(search: LogSearch, rolled: Record, body: RolledBack) -> int:
    """The number of samples in the steps that a rollback undid."""
    batches: dict[str, int] = {}
    loops: dict[str, Loop] = {}
    kinds = {kind.__name__ for kind in (DatasetAttached, LoopOpened, RolledBack)}
    for record in search.all(kinds, None, rolled.at_ns, task=body.task):
        fact = record.event.body
        if isinstance(fact, DatasetAttached) and fact.unit == "lane":
            batches[fact.dataset] = fact.global_batch
        elif isinstance(fact, LoopOpened):
            loops[fact.loop] = Loop(
                dataset=fact.dataset, start=fact.start, first=fact.first, steps=fact.steps
            )
        elif isinstance(fact, RolledBack):
            loops = loops_up_to(loops, fact.to)
    return sum(
        batch * max(each.stop - max(each.start, body.to), 0)
        for dataset, batch in batches.items()
        for each in loop_ranges(loops, dataset, body.origin)
    )


def _redone(search: LogSearch, rolled: Record, body: RolledBack) -> int:
    committed = search.all({StepsCommitted.__name__}, rolled.at_ns, task=body.task)
    lasts = [record.get("last") for record in committed]
    return max((last + 1 for last in lasts if isinstance(last, int)), default=body.to)


def _unapplied(
    search: LogSearch, task: str, until_ns: int
) -> tuple[list[Record], list[Link], list[str]]:
    """Steps that workers started before a loss and did not apply."""
    loss = search.last({"WorkerLost"}, until_ns, task=task)
    if loss is None:
        return [], [], []
    window = (loss.at_ns - 60 * SECOND_NS, loss.at_ns + 1)
    begun = search.all({"TrainingStarted"}, *window, node=None)
    done = {(r.node, r.get("step")) for r in search.all({"StepFinished"}, *window, node=None)}
    left = [record for record in begun if (record.node, record.get("step")) not in done]
    newest = {record.node: record for record in left}
    doubt = [
        f"the last step of {node} is uncertain: {holes[0]}"
        for node in newest
        if (holes := search.holes(node, *window))
    ]
    return list(newest.values()), [link(loss)], doubt
