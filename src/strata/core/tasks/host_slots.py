"""Free slots of the hosts, while workers are placed on them one after the other."""

from collections import Counter
from collections.abc import Collection, Mapping
from heapq import heapify, heappop, heapreplace

from strata.core.state import Agent, Cluster, Gpu, Host
from strata.core.task_state import Placement, Task


class FreeSlots:
    """Counts slots down, and finds the host with the most free slots without a scan.

    Hosts in `doubtful` may be lost already: they come last, however many slots they have.
    """

    def __init__(self, free: Mapping[str, int], doubtful: Collection[str] = ()) -> None:
        self.total = sum(free.values())
        self._free = dict(free)
        self._doubtful = frozenset(doubtful)
        # Counts only fall, so an outdated entry is corrected when it is popped.
        self._heap = [
            (agent in self._doubtful, -slots, order, agent)
            for order, (agent, slots) in enumerate(free.items())
        ]
        heapify(self._heap)

    def take(self, preferred: str = "") -> str:
        """The agent whose slot is taken: the preferred one if it has any and is not in doubt, else
        the roomiest; empty where no slot is free."""
        known = preferred not in self._doubtful and self._free.get(preferred, 0) > 0
        agent = preferred if known else self._roomiest()
        if agent:
            self._free[agent] -= 1
            self.total -= 1
        return agent

    def _roomiest(self) -> str:
        while self._heap:
            doubtful, counted, order, agent = self._heap[0]
            slots = self._free[agent]
            if slots <= 0:
                heappop(self._heap)
            elif slots != -counted:
                heapreplace(self._heap, (doubtful, -slots, order, agent))
            else:
                return agent
        return ""


def first_placement(state: Cluster, task: Task, worker_id: str, agent: str) -> Placement:
    """The first placement of a worker since its task was queued or resized."""
    worker = state.workers.get(worker_id)  # of an earlier start of the task
    return Placement(
        agent=agent,
        start=task.last_start + 1,
        committed=task.committed,
        incarnation=worker.incarnation if worker is not None else 0,
    )


def taken_slots(state: Cluster) -> Counter[str]:
    """How many slots of each agent are taken; the process of a released worker takes one until it
    has ended."""
    taken = Counter[str]()
    for task in state.tasks.values():
        vacant = set(task.vacant)
        taken.update(p.agent for worker, p in task.placements.items() if worker not in vacant)
        taken.update(p.agent for p in task.released.values())
    return taken


def is_gpu_excluded(host: Host, gpu: Gpu) -> bool:
    """Whether no worker gets a GPU of a host."""
    return any(each.gpu.is_same(gpu) for each in host.excluded_gpus.values())


def usable_slots(state: Cluster, agent: Agent) -> int:
    """How many slots of an agent workers may get: none unless it is up and not excluded, and none
    with an excluded GPU."""
    host = state.hosts.get(agent.id)
    if not agent.up or (host is not None and host.excluded):
        return 0
    if host is None or not host.excluded_gpus:
        return agent.slots
    lost = sum(any(is_gpu_excluded(host, gpu) for gpu in slot) for slot in agent.gpus)
    return max(agent.slots - lost, 0)


def is_usable(state: Cluster, agent: str) -> bool:
    """Whether workers may be placed on the host of an agent."""
    known = state.agents.get(agent)
    return known is not None and usable_slots(state, known) > 0


def free_slots(state: Cluster) -> dict[str, int]:
    """Free slots of each agent that is usable. A worker on an excluded GPU, which goes on, counts
    as if it had one of the usable slots, because only the agent knows which one it has."""
    taken = taken_slots(state)
    usable = {agent.id: usable_slots(state, agent) for agent in state.agents.values()}
    return {agent: max(slots - taken[agent], 0) for agent, slots in usable.items() if slots}


def held_slots(state: Cluster, task: Task) -> int:
    """How many slots a task holds that can be used when it ends."""
    vacant = set(task.vacant)
    places = Counter(p.agent for worker, p in task.placements.items() if worker not in vacant)
    known = ((state.agents.get(agent), held) for agent, held in places.items())
    return sum(min(held, usable_slots(state, agent)) for agent, held in known if agent is not None)
