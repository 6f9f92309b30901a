"""Did this task hang, which rank do the others wait for, and where is each?

The answer reads the newest collection of stacks (`core/workers/stack_collection`). Ranks are
grouped by the exchange that they wait in, else by where the user's script is. The rank to look at
is one that does not take part in the newest exchange of its group, or has not arrived at the
barrier of the others. A rank without a report is named, with the reason.
"""

from collections.abc import Sequence

from strata.core.hosts.host_health import GpuHealth, new_error
from strata.core.hosts.host_record import HostMeasured
from strata.core.workers.stack_collection import StacksRequested
from strata.core.workers.stack_reports import PendingExchange, collective_of, other_places
from strata.core.workers.worker_lifecycle import WorkerLost, WorkerRegistered
from strata.timeline.answers import Cost, Verdict
from strata.timeline.read.operations import LONG_KINDS, Pairing, newest_of
from strata.timeline.read.recorded_tasks import require_task
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import counted, lasting, seconds
from strata.timeline.why.collected_stacks import (
    Collected,
    SeenWorker,
    collected,
    newest,
    not_asked,
)
from strata.timeline.why.investigation import Answer, Link, LogSearch, in_order, link

BELONGS_NS = 180 * SECOND_NS
"""A loss this long after a collection may follow from it; repeated hangs are not collected anew."""

AFTER_NS = 3_600 * SECOND_NS
OPEN_NS = 900 * SECOND_NS
GROUPS = 6
NAMED = 8
OTHER_PLACES = 3
STOPPED = ("stopped", "tracing-stop")
MAX_GPU_ERRORS = 3


def hang(search: LogSearch, task: str = "", time_ms: float | None = None) -> Answer:
    """Did the workers stop to progress, and which of them do the others wait for?"""
    until_ns = search.until(time_ms)
    begun = newest(search.timeline, task, until_ns)
    loss = search.last({WorkerLost.__name__}, until_ns, task=task, signal="hang")
    if loss is not None and (begun is None or loss.at_ns - begun.at_ns > BELONGS_NS):
        return _without_stacks(search, loss)
    if begun is None:
        return _none(search, task)
    found = collected(search.timeline, begun)
    verdict, why, follows = _verdict(search, found)
    culprits = _culprits(found)
    text = f"{verdict}: {'; '.join([*_phrases(found, culprits), why])}"
    reports = [link(record) for each in culprits[:3] for record in each.records[:1]]
    ends = [link(found.ended)] if found.ended is not None else []
    chain = in_order([link(found.begun), *reports, *ends, *(follows[:1])])
    return Answer(
        verdict=verdict,
        text=text,
        chain=chain,
        cost=_cost(found, follows),
        findings=_findings(search, found, culprits),
    )


def _none(search: LogSearch, task: str) -> Answer:
    if task:
        require_task(search.timeline, task)
    return Answer(verdict="no", text=f"no: no hang{f' of {task}' if task else ''} was detected")


def _without_stacks(search: LogSearch, loss: Record) -> Answer:
    worker = loss.text("worker")
    text = (
        f"yes: {worker} hung ({loss.text('reason')}); where the workers were is not recorded: no "
        "stacks were collected (hang_report_s is 0, or an earlier release ran)"
    )
    return Answer(verdict="yes", text=text, chain=search.ancestry(loss))


def _verdict(search: LogSearch, found: Collected) -> tuple[Verdict, str, list[Link]]:
    """Whether it was a hang, why, and what followed from it."""
    request, since_ns = found.request, found.begun.at_ns
    ends = _ends(search, request, since_ns, since_ns + BELONGS_NS)
    if ends is not None:
        return "yes", request.reason, [link(ends)]
    later = search.first({"StepsCommitted"}, since_ns + 1, since_ns + AFTER_NS, task=request.task)
    asked = "a user asked for the stacks" if request.trigger == "request" else request.reason
    if later is not None:
        after = seconds(later.at_ns - since_ns)
        return "no", f"{asked}; {after} later the task finished steps", [link(later)]
    return "open", f"{asked}; no later step is recorded", []


def _ends(search: LogSearch, request: StacksRequested, since_ns: int, end_ns: int) -> Record | None:
    """The loss or the failed barrier that the collection preceded."""
    if request.trigger == "barrier":
        return search.first({"BarrierFailed"}, since_ns, end_ns, task=request.task)
    if request.trigger == "request":
        found = search.all({"WorkerLost"}, since_ns, end_ns, task=request.task, signal="hang")
        return next(iter(found), None)
    suspects = [
        search.first({"WorkerLost"}, since_ns, end_ns, worker=worker) for worker in request.suspects
    ]
    return next((each for each in suspects if each is not None), None)


def _culprits(found: Collected) -> list[SeenWorker]:
    """The workers that the others wait for; empty if the stacks do not tell."""
    workers = found.workers
    if any(_waits(each) for each in workers):
        behind, named = _behind(workers), _missing(found)
        return behind + [each for each in named if not each.asked or not behind]
    collective = [each for each in workers if _collective(each)]
    if collective:
        return [each for each in workers if each not in collective]
    suspects = [each for each in workers if each.worker in found.request.suspects]
    at_barrier = [each for each in workers if _barrier(each)]
    return suspects or ([each for each in workers if each not in at_barrier] if at_barrier else [])


def _behind(workers: Sequence[SeenWorker]) -> list[SeenWorker]:
    """The workers that wait in no exchange, or in an earlier one than others of their group."""
    newest: dict[tuple[str, int], tuple[int, int]] = {}
    for worker in workers:
        if exchange := _waits(worker):
            group = _group(exchange)
            newest[group] = max(newest.get(group, (0, 0)), _position(exchange))
    exchanges = {each.worker: _waits(each) for each in workers}
    return [
        worker
        for worker in workers
        if not (exchange := exchanges[worker.worker])
        or _position(exchange) < newest[_group(exchange)]
    ]


def _missing(found: Collected) -> list[SeenWorker]:
    """The workers that have not arrived according to others, also if they were not asked."""
    exchanges = [exchange for each in found.workers if (exchange := _waits(each))]
    names = dict.fromkeys(name for exchange in exchanges for name in exchange.missing)
    asked = {each.worker: each for each in found.workers}
    return [asked.get(name) or not_asked(name) for name in names]


def _waits(worker: SeenWorker) -> PendingExchange | None:
    """The exchange that a worker waits in."""
    exchange = worker.exchange
    return exchange if exchange is not None and exchange.pending else None


def _group(exchange: PendingExchange) -> tuple[str, int]:
    """What its number is compared within. Groups of PyTorch are formed anew in each generation;
    the generations of Strata's own exchanges follow each other."""
    return exchange.group, exchange.generation if exchange.group else 0


def _position(exchange: PendingExchange) -> tuple[int, int]:
    return exchange.generation, exchange.number


def _collective(worker: SeenWorker) -> str:
    return collective_of(worker.stacks) if worker.stacks is not None else ""


def _barrier(worker: SeenWorker) -> str:
    waits = worker.own.waits_for if worker.own is not None else []
    return next((each for each in waits if each.startswith("barrier ")), "")


def _phrases(found: Collected, culprits: Sequence[SeenWorker]) -> list[str]:
    """Where the ranks are, the ones to look at first."""
    others = [each for each in found.workers if each not in culprits]
    groups: dict[tuple[bool, str], list[SeenWorker]] = {}
    for late, workers in ((True, culprits), (False, others)):
        for worker in workers:
            groups.setdefault((late, _doing(worker)), []).append(worker)
    phrases = [f"{_ranks(who)} {_are(who, doing)}" for (_, doing), who in groups.items()]
    hidden = sum(len(who) for who in list(groups.values())[GROUPS:])
    more = [f"{counted(hidden, 'more rank')} are elsewhere"] if hidden else []
    return phrases[:GROUPS] + more + ([] if culprits else _none_missing(found))


def _none_missing(found: Collected) -> list[str]:
    """That no rank is missing, if all wait in the same exchange and all were asked."""
    exchanges = [_waits(each) for each in found.workers]
    if None in exchanges:
        return []
    if found.request.left_out:
        left_out = counted(found.request.left_out, "worker")
        return [f"a rank that is missing may be among {left_out} that were not asked"]
    if len({(_group(each), _position(each)) for each in exchanges if each}) > 1:
        return ["the numbers of different process groups do not tell which rank is missing"]
    return ["no rank is missing: the network or the collective library does not proceed"]


def _doing(worker: SeenWorker) -> str:
    """A phrase on what a worker does; verbs in the singular, `is` or `waits` first."""
    stopped = worker.stacks is not None and worker.stacks.processes[0].state in STOPPED
    if stopped:
        return f"is stopped (SIGSTOP or a debugger) in {worker.place or 'unknown code'}"
    if exchange := _waits(worker):
        if exchange.kind == "connect":
            return f"waits until the members of generation {exchange.generation} are connected"
        group = f" of process group {exchange.group}" if exchange.group else ""
        return f"waits in {exchange.kind} {exchange.number:,}{group}"
    if _barrier(worker):
        return f"waits at {_barrier(worker)}"
    if _collective(worker):
        return f"waits in {_collective(worker)}, called in {worker.place}"
    if worker.place:
        return f"is in {worker.place}"
    return f"is not recorded, because {'; '.join(worker.notes) or 'no reason is recorded'}"


def _are(who: Sequence[SeenWorker], doing: str) -> str:
    """The phrase with its verb in the right number."""
    if len(who) == 1:
        return doing
    verb, _, rest = doing.partition(" ")
    return f"{ {'is': 'are', 'waits': 'wait'}[verb] } {rest}".strip()


def _ranks(who: Sequence[SeenWorker]) -> str:
    """`rank 3`, `ranks 0, 1 and 3 to 7`; workers without a rank by their name."""
    ranks = [each.rank for each in who if each.rank >= 0]
    named = [each.worker for each in who if each.rank < 0]
    hidden = [counted(len(named) - NAMED, "other worker")] if len(named) > NAMED else []
    if not ranks:
        return " and ".join(named[:NAMED] + hidden)
    texts = [text for run in _runs(ranks) for text in _run_texts(run)]
    texts = texts[:NAMED] + (["others"] if len(texts) > NAMED else []) + named[:NAMED] + hidden
    listed = " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else texts[0]
    return f"{'rank' if len(ranks) == 1 and not named else 'ranks'} {listed}"


def _runs(ranks: Sequence[int]) -> list[list[int]]:
    """The ranks in groups without a gap."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return runs


def _run_texts(run: Sequence[int]) -> list[str]:
    return [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(rank) for rank in run]


def _cost(found: Collected, follows: Sequence[Link]) -> Cost:
    waits_s = [
        each.exchange.since_s
        for each in found.workers
        if each.exchange is not None and each.exchange.pending
    ]
    if not waits_s:
        return Cost()
    text = f"{counted(len(waits_s), 'worker')} waited, the longest {lasting(max(waits_s))}"
    return Cost(sum(waits_s), len(waits_s), text)


def _findings(search: LogSearch, found: Collected, culprits: Sequence[SeenWorker]) -> list[str]:
    """Details of the ranks to look at, then of all ranks."""
    lines = [line for each in culprits[:NAMED] for line in _details(search, found, each)]
    for each in found.workers:
        stacks = each.stacks
        how = f"stacks by {stacks.source}" if stacks is not None else "no stacks"
        place = f" in {each.place}" if each.place else ""
        notes = f" ({'; '.join(each.notes)})" if each.notes else ""
        lines.append(f"{_ranks([each])} ({each.worker}): {how}{place}{notes}")
    if found.request.left_out:
        lines.append(f"{counted(found.request.left_out, 'more worker')} were not asked")
    return lines


def _details(search: LogSearch, found: Collected, worker: SeenWorker) -> list[str]:
    name, at_ns = _ranks([worker]), found.begun.at_ns
    pairing = Pairing()
    for record in search.timeline.records(at_ns - OPEN_NS, at_ns, node=worker.worker):
        pairing.feed(record)
    lines = []
    longest = newest_of(each for each in pairing.open.values() if each.name in LONG_KINDS)
    newest_open = longest or newest_of(pairing.open.values())
    if newest_open is not None:
        operation, start = newest_open
        lines.append(f"{name} is {operation.text} since {seconds(at_ns - start.at_ns)}")
    for place in other_places(worker.stacks)[:OTHER_PLACES] if worker.stacks is not None else []:
        lines.append(f"{name} also runs {place.text}")
    errors = _gpu_errors(search, worker.worker, at_ns)
    return lines + [f"{name}: {error}" for error in errors[-MAX_GPU_ERRORS:]]


def _gpu_errors(search: LogSearch, worker: str, at_ns: int) -> list[str]:
    """The errors of GPUs on a worker's host that were measured shortly before a moment."""
    joined = search.last({WorkerRegistered.__name__}, at_ns, worker=worker)
    if joined is None:
        return []
    found = []
    known: dict[int, GpuHealth] = {}
    measured = search.all(
        {HostMeasured.__name__}, at_ns - OPEN_NS, at_ns, hostname=joined.text("hostname")
    )
    for record in measured:
        body = record.event.body
        assert isinstance(body, HostMeasured)
        for gpu in body.health.gpus:
            error = new_error(known.get(gpu.index), gpu)
            known[gpu.index] = gpu
            if error is not None:
                ago = seconds(at_ns - record.at_ns)
                found.append(f"GPU {gpu.index} of its host, {ago} before: {error.text}")
    return found
