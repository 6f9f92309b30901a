"""Snapshots of the state: a state of this release, or an error."""

from strata.core.record import snapshot_versions
from strata.core.state import Cluster, encode
from tests.core.scenario import every_kind
from tests.fuzz.targets import refused_naming


def seeds() -> list[bytes]:
    return [snapshot_versions.encode(state) for state in (Cluster(), every_kind().state)]


def check(data: bytes) -> None:
    with refused_naming("snapshot"):
        state = snapshot_versions.decode(snapshot_versions.SCHEMA, data)
        encode(state)
