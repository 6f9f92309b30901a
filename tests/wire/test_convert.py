"""Conversion of worker resources: every field of the core's structures is in the message."""

import pytest

from strata.core.workers.heartbeats import GpuMetrics, ResourceMetrics
from strata.wire.messages.worker_messages import resources, resources_message
from strata.wire.v1 import coordinator_pb2 as pb


@pytest.mark.parametrize(
    ("structure", "message"),
    [(GpuMetrics, pb.GpuMetrics), (ResourceMetrics, pb.ResourceMetrics)],
)
def test_message_has_the_fields_of_the_structure(structure, message):
    assert set(message.DESCRIPTOR.fields_by_name) == set(structure.__struct_fields__)


@pytest.mark.parametrize(
    "metrics",
    [
        ResourceMetrics(),
        ResourceMetrics(network_rx_bytes=0, network_tx_bytes=0),
        ResourceMetrics(
            cpu_percent=12.5,
            memory_used_bytes=2**40,
            gpu_metrics=[GpuMetrics(0), GpuMetrics(1, "H200", 50.0, 1, 2)],
            disk_read_bytes=1,
            disk_write_bytes=2,
            disk_free_bytes=3,
            network_rx_bytes=4,
            network_tx_bytes=5,
        ),
    ],
)
def test_resources_survive_the_wire(metrics):
    sent = pb.ResourceMetrics.FromString(resources_message(metrics).SerializeToString())
    assert resources(sent) == metrics
