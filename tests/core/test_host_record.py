"""The recorded health of hosts: each of many hosts less often, urgent changes at once."""

from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import MEASUREMENTS_PER_S, HostMeasured, ReportHost
from tests.core.world import World

HOSTS = [f"host-{number}" for number in range(8)]
ROUNDS = 10


def world_of(hosts):
    world = World()
    for host in hosts:
        world.agent(host)
    return world


def report(world, host, **gpu):
    """A measurement of a host; each command of the world takes a second."""
    health = HostHealth(load_1m=1.0, gpus=[GpuHealth(index=0, temperature_celsius=50.0, **gpu)])
    incarnation = world.state.agents[host].incarnation
    world.do(ReportHost(agent=host, incarnation=incarnation, health=health))
    return world.new(HostMeasured)


def test_single_host_records_every_report():
    world = world_of(HOSTS[:1])
    assert all(report(world, HOSTS[0]) for _ in range(ROUNDS))


def test_all_hosts_together_record_a_bounded_number_of_measurements():
    world = world_of(HOSTS)
    for host in HOSTS:
        report(world, host)
    known = len(world.facts(HostMeasured))
    for _ in range(ROUNDS):
        for host in HOSTS:
            report(world, host)
            report(world, host)
    lasted_s = 2 * ROUNDS * len(HOSTS)
    recorded = [fact.host for fact in world.facts(HostMeasured)][known:]
    assert len(recorded) <= MEASUREMENTS_PER_S * lasted_s
    assert all(recorded.count(host) == ROUNDS for host in HOSTS)


def test_counter_that_rises_all_the_time_is_recorded_once_a_minute():
    hosts = [f"host-{number}" for number in range(100)]
    world = world_of(hosts)
    for host in hosts:
        report(world, host)
    recorded = sum(len(report(world, hosts[0], ecc_corrected=n)) for n in range(1, 181))
    assert recorded == 3, "each report takes a second"


def test_throttling_that_starts_and_ends_all_the_time_is_recorded_at_its_first_start():
    world = world_of(HOSTS)
    for host in HOSTS:
        report(world, host, throttle_reasons="")
    assert report(world, HOSTS[0], throttle_reasons="hw_thermal")
    assert not report(world, HOSTS[0], throttle_reasons="")
    assert not report(world, HOSTS[0], throttle_reasons="hw_thermal")


def test_urgent_change_is_recorded_at_once():
    world = world_of(HOSTS)
    for host in HOSTS:
        assert report(world, host)
    assert not report(world, HOSTS[-1])
    assert report(world, HOSTS[-1], ecc_uncorrected=1)
    assert not report(world, HOSTS[-1], ecc_uncorrected=1)
