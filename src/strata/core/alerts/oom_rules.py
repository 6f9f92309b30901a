"""The rule on OOM kills: the kernel ended a process on a host because memory was used up.

The kernel counts them for the host and for the cgroup of the reporter; a measurement whose counter
is higher than in the measurement before shows one. Kills that were only counted for the host, and
not in the cgroup of the reporter, may concern processes of others: they are a warning.

Counters are only compared between measurements of the same reporter. After the agent of a host was
started again the next measurement is the first one, because the agent may run in another cgroup.

It ends after `OOM_S` without another one, by the wall clock, which goes on while no coordinator
runs.
"""

from strata.core.alerts.alert_record import Finding
from strata.core.alerts.alert_settings import AlertThresholds
from strata.core.alerts.open_conditions import OpenConditions
from strata.core.events import Event, Now, position_id
from strata.core.hosts.host_health import HostHealth, new_oom_kills
from strata.core.hosts.host_record import MAX_HOSTS, HostMeasured
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Alert, Cluster
from strata.core.workers.host_agents import AgentRegistered

OOM = "oom_kill"
OOM_S = 600


class OomRules:
    """Follows the counters of OOM kills of every host."""

    FOLLOWED = (HostMeasured, AgentRegistered)

    def __init__(self, conditions: OpenConditions, thresholds: AlertThresholds) -> None:
        self._conditions = conditions
        self._limits = thresholds
        self._last: dict[str, tuple[str, HostHealth]] = {}
        self._found: dict[str, int] = {}

    def adopt(self, alert: Alert) -> None:
        """Continue with an open alert after a restart."""
        if alert.rule == OOM:
            self._found[alert.subject] = alert.last_ns

    def start(self, state: Cluster) -> None:
        """Start from the last measurements in a state."""
        for host in state.hosts.values():
            if host.health is not None:
                self._last[host.id] = (host.reporter, host.health)

    def follow(self, event: Event, now_ns: int) -> None:
        """Take a fact; `now_ns` is the monotonic time."""
        body = event.body
        if isinstance(body, AgentRegistered):
            self._last.pop(body.agent, None)
        elif isinstance(body, HostMeasured):
            reporter, before = self._last.pop(body.host, ("", None))
            self._last[body.host] = (body.reporter, body.health)
            while len(self._last) > MAX_HOSTS:
                del self._last[next(iter(self._last))]
            if before is not None and reporter == body.reporter and self._limits.on(OOM):
                self._compare(before, body, event, now_ns)

    def judge(self, now: Now) -> None:
        """End alerts whose time has passed."""
        limit_ns = now.wall_ns - OOM_S * SECOND_NS
        for subject in [each for each, found_ns in self._found.items() if found_ns <= limit_ns]:
            del self._found[subject]
            self._conditions.end(OOM, subject, f"there was no other one for {OOM_S} s")

    def _compare(self, before: HostHealth, body: HostMeasured, event: Event, now_ns: int) -> None:
        kills = new_oom_kills(before, body.health)
        if not kills.counted:
            return
        subject = f"host:{body.host}"
        evidence: dict[str, float | str] = {}
        if kills.host is not None:
            evidence["oom_kills"] = kills.host
        if kills.cgroup is not None:
            evidence["cgroup_oom_kills"] = kills.cgroup
        if body.health.memory_available_bytes is not None:
            evidence["memory_available_bytes"] = body.health.memory_available_bytes
        self._found[subject] = event.wall_ns
        counted = kills.text(f"host {body.host}", body.reporter)
        self._conditions.hold(
            Finding(
                rule=OOM,
                subject=subject,
                severity="warning" if kills.elsewhere else "error",
                text=f"memory was used up on host {body.host}: {counted}",
                evidence=evidence,
                causes=(position_id(event.seq),),
            ),
            now_ns,
        )
