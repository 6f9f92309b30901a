"""A shard as users see it."""

from msgspec import Struct

from strata.wire.v1 import coordinator_pb2 as pb


class ShardInfo(Struct, frozen=True):
    """A range of a dataset's samples, for one epoch; `end_index` is not part of it."""

    dataset_id: str
    shard_id: int
    total_shards: int
    start_index: int
    end_index: int
    file_paths: list[str]
    epoch: int

    @property
    def num_samples(self) -> int:
        """How many samples it has."""
        return self.end_index - self.start_index


def shard_info(message: pb.DataShard) -> ShardInfo:
    """The shard that a message describes."""
    return ShardInfo(
        message.dataset_id,
        message.shard_id,
        message.total_shards,
        message.start_index,
        message.end_index,
        list(message.file_paths),
        message.epoch,
    )
