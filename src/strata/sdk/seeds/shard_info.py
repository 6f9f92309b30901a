"""`ShardInfo`: a shard as users see it."""

from msgspec import Struct

from strata.wire.v1 import coordinator_pb2 as pb


class ShardInfo(Struct, frozen=True):
    """A range of a dataset's samples in one epoch; `end_index` is exclusive."""

    dataset_id: str
    shard_id: int
    total_shards: int
    start_index: int
    end_index: int
    file_paths: list[str]
    epoch: int

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self.end_index - self.start_index


def shard_info(message: pb.DataShard) -> ShardInfo:
    """The shard that a message describes."""
    return ShardInfo(
        dataset_id=message.dataset_id,
        shard_id=message.shard_id,
        total_shards=message.total_shards,
        start_index=message.start_index,
        end_index=message.end_index,
        file_paths=list(message.file_paths),
        epoch=message.epoch,
    )
