"""Was a process that signal 9 ended killed by the kernel's OOM killer?

The kernel does not say which process it kills, but it counts the kills, for the host and for the
cgroup of the agent. Agents measure the counters every few seconds and report a change at once. A
counter that rose in the measurements around the end of the process makes it probable. A counter
that is the same before and after the end excludes it. Measurements are not compared across a new
registration of the agent, which may then run in another cgroup.
"""

from itertools import pairwise

from strata.core.hosts.host_health import OomKills, new_oom_kills
from strata.core.hosts.host_record import HostMeasured
from strata.core.workers.host_agents import AgentRegistered, WorkerExited
from strata.timeline.read.records import SECOND_NS, Record
from strata.timeline.read.sentences import seconds
from strata.timeline.why.investigation import Link, LogSearch, link

SIGKILL = 9

BEFORE_NS = 10 * SECOND_NS
AFTER_NS = 30 * SECOND_NS
"""A counter that rose from so long before to so long after an end may have counted it."""

DELAY_NS = SECOND_NS
"""A measurement this soon after an end may have been taken before it."""

REACH_NS = 10_800 * SECOND_NS
"""The measurements next to an end are at most this far away: large clusters record few of them."""

KILLER = "the kernel's OOM killer"


def oom_kill(search: LogSearch, exited: Record) -> tuple[str, list[Link]]:
    """A clause on whether the OOM killer ended a process, and the measurement that shows it.

    Empty if the process ended otherwise than by signal 9.
    """
    body = exited.event.body
    assert isinstance(body, WorkerExited)
    if body.signal != SIGKILL:
        return "", []
    measured = _measurements(search, body.agent, exited.at_ns)
    for before, record in pairwise(measured):
        kills = _kills(before, record)
        if not kills.known or (kills.counted and record.at_ns > exited.at_ns + AFTER_NS):
            break
        if kills.counted and record.at_ns >= exited.at_ns - BEFORE_NS:
            likely = "possibly" if kills.elsewhere else "probably"
            after_ns = record.at_ns - exited.at_ns
            when = f"{seconds(abs(after_ns))} {'later' if after_ns >= 0 else 'before'}"
            counted = f"{kills.text('its host', f'agent {body.agent}')}, {when}"
            return f"{likely} killed by {KILLER}: {counted}", [link(record, counted)]
        if measured[0].at_ns < exited.at_ns and record.at_ns > exited.at_ns + DELAY_NS:
            return "no OOM kill was counted on its host", []
    return f"whether {KILLER} ended it is not recorded", []


def _kills(before: Record, after: Record) -> OomKills:
    """The OOM kills between two measurements."""
    earlier, now = before.event.body, after.event.body
    assert isinstance(earlier, HostMeasured)
    assert isinstance(now, HostMeasured)
    return new_oom_kills(earlier.health, now.health)


def _measurements(search: LogSearch, agent: str, at_ns: int) -> list[Record]:
    """The measurements of a host around a moment, with one before and one after.

    They are those of the agent as it ran at that moment.
    """
    kinds, reporter = {HostMeasured.__name__}, {"host": agent, "reporter": agent}
    begun = search.last({AgentRegistered.__name__}, at_ns, agent=agent)
    again = search.first({AgentRegistered.__name__}, at_ns, at_ns + REACH_NS, agent=agent)
    since_ns = max(at_ns - REACH_NS, begun.at_ns if begun is not None else 0)
    until_ns = min(at_ns + REACH_NS, again.at_ns if again is not None else at_ns + REACH_NS)
    low_ns, high_ns = max(at_ns - BEFORE_NS, since_ns), min(at_ns + AFTER_NS, until_ns)
    before = search.last(kinds, low_ns, since_ns, **reporter)
    near = search.all(kinds, low_ns, high_ns, **reporter)
    later = search.first(kinds, high_ns, until_ns, **reporter)
    return [each for each in (before, *near, later) if each is not None]
