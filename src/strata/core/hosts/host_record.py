"""Which hosts are known, and how healthy each was when it was last measured.

A host is known by the id of its agent; a host without an agent by its hostname, once a worker there
reports it. At most `MAX_HOSTS` are kept: a further one replaces the one with the oldest report.

All hosts together record `MEASUREMENTS_PER_S` on average, so that a cluster of thousands of hosts
does not fill the log: the more hosts there are, the longer is the time between two measurements of
one host. Two changes are recorded earlier: an urgent one at once, and a rising counter of corrected
errors after `RISING_NS` at the latest.
"""

from strata.core.decision import Decision, applies, decides
from strata.core.events import Command, Event, Fact
from strata.core.hosts.host_exclusion import SECOND_NS, exclude_for_fault
from strata.core.hosts.host_health import HostHealth, is_urgent, rising_errors
from strata.core.limits import require_name
from strata.core.state import Cluster, Host
from strata.core.workers.fencing import WorkerCommand, require_agent

MAX_HOSTS = 10_000
MEASUREMENTS_PER_S = 1
RISING_NS = 60 * SECOND_NS


class HostMeasured(Fact, frozen=True, kw_only=True):
    """The health of a host, measured by its agent or, without one, by a worker there.

    It is recorded every `resource_interval_s`, less often in a cluster of many hosts. It is
    recorded at once when a GPU is lost or has an uncorrected ECC error or an Xid error, when
    thermal throttling starts, and after an OOM kill. While corrected ECC errors, NVLink errors or
    network errors rise, a host of a large cluster records one measurement a minute.
    """

    sentence = "{reporter} measured the health of host {host}"

    host: str
    hostname: str
    reporter: str
    health: HostHealth


class ReportHost(Command, frozen=True):
    """An agent measured its host."""

    agent: str
    incarnation: int
    health: HostHealth


class ReportHostOfWorker(WorkerCommand, frozen=True):
    """A worker measured the host it runs on, which has no agent."""

    health: HostHealth


@applies(HostMeasured)
def _measured(state: Cluster, fact: HostMeasured, event: Event) -> None:
    host = state.hosts.get(fact.host)
    if host is None:
        _make_room(state)
        host = state.hosts[fact.host] = Host(id=fact.host)
    host.hostname = fact.hostname
    host.reporter = fact.reporter
    host.measured_ns = event.wall_ns
    host.health = fact.health


def _make_room(state: Cluster) -> None:
    if len(state.hosts) >= MAX_HOSTS:
        used = (host for host in state.hosts.values() if not host.excluded)
        oldest = min(used, key=lambda host: host.measured_ns, default=None)
        if oldest is not None:
            del state.hosts[oldest.id]


@decides(ReportHost)
def report_host(d: Decision, c: ReportHost) -> None:
    """Record the health of an agent's host, if it is due."""
    agent = require_agent(d.state, c.agent, c.incarnation)
    if not _is_due(d, agent.id, c.health):
        return
    known = d.state.hosts.get(agent.id)
    # A worker that measured this host before may have read other GPUs.
    before = known.health if known is not None and known.reporter == agent.id else None
    measured = HostMeasured(
        host=agent.id, hostname=agent.hostname, reporter=agent.id, health=c.health
    )
    exclude_for_fault(d, agent.id, before, c.health, d.record(measured, c.cause))


@decides(ReportHostOfWorker)
def report_host_of_worker(d: Decision, c: ReportHostOfWorker) -> None:
    """Record the health of a worker's host, unless an agent reports it."""
    hostname = d.state.workers[c.worker].hostname
    agents = d.state.agents.values()
    if not hostname or any(each.up and hostname in (each.id, each.hostname) for each in agents):
        return
    require_name("hostname", hostname)
    if not _is_due(d, hostname, c.health):
        return
    measured = HostMeasured(host=hostname, hostname=hostname, reporter=c.worker, health=c.health)
    d.record(measured, c.cause)


def _is_due(d: Decision, host: str, health: HostHealth) -> bool:
    """Whether to record a measurement: it shows an urgent change, or the last one is old."""
    known = d.state.hosts.get(host)
    if known is None or known.health is None or is_urgent(known.health, health):
        return True
    age_ns = d.now.wall_ns - known.measured_ns
    period_ns = len(d.state.hosts) * SECOND_NS // MEASUREMENTS_PER_S
    if rising_errors(known.health) != rising_errors(health):
        period_ns = min(period_ns, RISING_NS)
    return not 0 <= age_ns < period_ns
