"""Checks that a resource declared in `core/workers/heartbeats` reaches every format that carries
resources.

A new field of `Usage` fails here in each format that lacks it, by name.
"""

import msgspec
import pytest

from strata.coordinator.metrics.series import PER_WORKER
from strata.coordinator.rest.response_models import GpuResponse, ResourcesResponse
from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.core.workers.worker_facts import ResourceSnapshot, resource_snapshot
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
    return ResourceMetrics(**figures | {"gpu_metrics": [gpu]} | chosen)


def test_every_format_has_the_same_fields():
    assert {field.name for field in pb.ResourceMetrics.DESCRIPTOR.fields} == METRICS
    assert set(ResourcesResponse.__struct_fields__) == METRICS
    cards = set(GpuMetrics.__struct_fields__)
    assert cards == {field.name for field in pb.GpuMetrics.DESCRIPTOR.fields}
    assert cards == set(GpuResponse.__struct_fields__)


def test_every_figure_has_a_prometheus_series():
    assert METRICS - {"gpu_metrics"} == set(PER_WORKER)


@pytest.mark.parametrize("network", [7, None])
def test_metrics_survive_the_wire_and_the_log(network):
    metrics = measured(network_rx_bytes=network, network_tx_bytes=network)
    assert resources(resources_message(metrics)) == metrics
    recorded = msgspec.msgpack.encode(resource_snapshot(metrics))
    assert msgspec.msgpack.decode(recorded, type=ResourceSnapshot).metrics() == metrics
