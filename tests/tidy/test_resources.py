"""Checks that a resource declared in `core/workers/heartbeats`, and a figure declared in
`core/hosts/host_health`, reaches every format that carries it.

A new field of `Usage`, `HostFigures` or `GpuHealth` fails here in each format that lacks it, by
name.
"""

import msgspec
import pytest

from strata.coordinator.metrics import host_series
from strata.coordinator.metrics.series import PER_WORKER
from strata.coordinator.rest.host_responses import GpuHealthResponse, HostHealthResponse
from strata.coordinator.rest.response_models import GpuResponse, ResourcesResponse
from strata.core.hosts.host_health import GpuHealth, HostHealth
from strata.core.hosts.host_record import HostMeasured
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.worker_facts import ResourceSnapshot, resource_snapshot
from strata.wire.messages.host_messages import host_health, host_health_message
from strata.wire.messages.worker_messages import resources, resources_message
from strata.wire.v1 import coordinator_pb2 as pb

METRICS = set(ResourceMetrics.__struct_fields__)


def measured(**chosen):
    """Metrics in which every figure is another number."""
    names = METRICS - {"gpu_metrics"}
    gpu = GpuMetrics(
        index=1,
        name="card",
        utilization_percent=2.0,
        memory_used_bytes=3,
        memory_total_bytes=4,
    )
    figures = {name: number for number, name in enumerate(sorted(names), start=10)}
    figures["disk_source"] = "server:/export"
    return ResourceMetrics(**figures | {"gpu_metrics": [gpu]} | chosen)


def test_every_format_has_the_same_fields():
    assert {field.name for field in pb.ResourceMetrics.DESCRIPTOR.fields} == METRICS
    assert set(ResourcesResponse.__struct_fields__) == METRICS
    cards = set(GpuMetrics.__struct_fields__)
    assert cards == {field.name for field in pb.GpuMetrics.DESCRIPTOR.fields}
    assert cards == set(GpuResponse.__struct_fields__)


def test_every_figure_has_a_prometheus_series():
    assert METRICS - {"gpu_metrics", "disk_source"} == set(PER_WORKER)


@pytest.mark.parametrize("network", [7, None])
def test_metrics_survive_the_wire_and_the_log(network):
    metrics = measured(network_rx_bytes=network, network_tx_bytes=network)
    assert resources(resources_message(metrics)) == metrics
    recorded = msgspec.msgpack.encode(resource_snapshot(metrics))
    assert msgspec.msgpack.decode(recorded, type=ResourceSnapshot).metrics() == metrics


HOST = set(HostHealth.__struct_fields__)
GPU = set(GpuHealth.__struct_fields__)
NAMES = {"index", "uuid", "name", "slowest_disk", "gpus"}
"""What says which figure is meant."""


def healthy(struct, **chosen):
    """Health in which every figure is another number."""
    fields = [field for field in msgspec.structs.fields(struct) if field.name != "gpus"]
    kinds = {"int": int, "float": float, "str": str, "bool": bool}
    values = {}
    for number, field in enumerate(fields, start=1):
        named = getattr(field.type, "__args__", (field.type,))[0].__name__
        values[field.name] = kinds[named](number)
    return struct(**values | chosen)


def test_every_format_has_the_figures_of_hosts_and_gpus():
    assert {field.name for field in pb.HostHealth.DESCRIPTOR.fields} == HOST
    assert {field.name for field in pb.GpuHealth.DESCRIPTOR.fields} == GPU
    assert set(HostHealthResponse.__struct_fields__) == HOST
    assert set(GpuHealthResponse.__struct_fields__) == GPU
    assert set(host_series.PER_HOST) == HOST - NAMES
    assert set(host_series.PER_GPU) == GPU - NAMES - {"throttle_reasons"}


@pytest.mark.parametrize(
    "health",
    [
        HostHealth(),
        HostHealth(oom_kills=0, gpus=[GpuHealth(index=1, ecc_uncorrected=0, throttle_reasons="")]),
        healthy(HostHealth, gpus=[healthy(GpuHealth)]),
    ],
    ids=["nothing measured", "zeros", "everything"],
)
def test_health_survives_the_wire_and_the_log(health):
    """What was not measured stays None, and a measured 0 stays 0."""
    sent = pb.HostHealth.FromString(host_health_message(health).SerializeToString())
    assert host_health(sent) == health
    fact = HostMeasured(host="h", hostname="h", reporter="h", health=health)
    recorded = msgspec.msgpack.encode(fact)
    assert msgspec.msgpack.decode(recorded, type=HostMeasured) == fact
