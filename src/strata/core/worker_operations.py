"""What a worker does that takes a while: each operation is started, progresses, and completes.

The events of one operation carry the same `op` in their envelopes, unique per attempt. Progress is
recorded at most every few seconds; a completion says whether it went well, and if not, why. An
operation that never completed was under way when the process ended, or its end was not recorded.
"""

from msgspec import field

from strata.core.events import Fact


class Progress(Fact, frozen=True):
    """Base of what is told while an operation runs: how much is done so far."""

    done_bytes: int


class Completed(Fact, frozen=True):
    """Base of how an operation ended."""

    ok: bool
    error: str = ""


class BlobUploadStarted(Fact, frozen=True):
    """A piece of data goes to a peer."""

    blob: str
    to: str
    size_bytes: int
    attempt: int = 1
    what: str = ""


class BlobUploadProgress(Progress, frozen=True):
    """So much of it was sent."""

    blob: str = ""


class BlobUploadCompleted(Completed, frozen=True):
    """The peer `to` has confirmed that it has the data, or not.

    `sent_bytes` were sent to it, also more than once where a connection broke.
    """

    blob: str = ""
    to: str = ""
    sent_bytes: int = 0
    took_s: float = 0.0


class BlobDownloadStarted(Fact, frozen=True):
    """A piece of data comes from a peer."""

    blob: str
    source: str
    size_bytes: int
    attempt: int = 1
    what: str = ""


class BlobDownloadProgress(Progress, frozen=True):
    """So much of it was received."""

    blob: str = ""


class BlobDownloadCompleted(Completed, frozen=True):
    """The data is here and verified, or not."""

    blob: str = ""
    source: str = ""
    received_bytes: int = 0
    took_s: float = 0.0


class DatasetOpenStarted(Fact, frozen=True):
    """A dataset is opened; its index is loaded, or its files are scanned to make one."""

    dataset: str
    source: str = ""


class DatasetOpenCompleted(Completed, frozen=True):
    """The dataset can be read, or not.

    `range_bytes` were read of remote files that were not fetched as a whole. `ago_s` is how long
    ago that ended where the process opened the dataset before it joined.
    """

    dataset: str = ""
    source: str = ""
    files: int = 0
    samples: int = 0
    range_bytes: int = 0
    took_s: float = 0.0
    ago_s: float = 0.0


class BatchDownloadRequested(Fact, frozen=True):
    """A file with samples is not on this host and was asked for; its download may have to wait.

    `batch` is the batch that needs it, or empty where a dataset is being opened. `attempt` counts
    failed downloads of the file before, and this one.
    """

    batch: str
    size_bytes: int = 0
    dataset: str = ""
    source: str = ""
    attempt: int = 1


class BatchDownloadStarted(Fact, frozen=True):
    """A file with samples of a batch is downloaded; it was queued for `queued_s` before."""

    batch: str
    size_bytes: int = 0
    dataset: str = ""
    source: str = ""
    attempt: int = 1
    queued_s: float = 0.0


class BatchDownloadProgress(Progress, frozen=True):
    """So much of the batch is here."""

    batch: str = ""


class BatchDownloadCompleted(Completed, frozen=True):
    """The file is on this host, or not.

    `shared` where another process of the host has fetched it meanwhile. `ago_s` is how long ago the
    download ended where the process had not joined then.
    """

    batch: str = ""
    dataset: str = ""
    source: str = ""
    done_bytes: int = 0
    attempt: int = 1
    queued_s: float = 0.0
    took_s: float = 0.0
    shared: bool = False
    ago_s: float = 0.0


class ResultDeserializeStarted(Fact, frozen=True):
    """A peer's training result is decoded."""

    batch: str
    blob: str = ""


class ResultDeserializeProgress(Progress, frozen=True):
    """So much of the result is decoded."""

    batch: str = ""


class ResultDeserializeCompleted(Completed, frozen=True):
    """The result can be applied, or not."""

    batch: str = ""


class ResultsApplyStarted(Fact, frozen=True):
    """The outer optimizer begins to apply the results of so many workers; `ResultsApplied` ends."""

    step: int
    workers: int
    batches: list[str] = field(default_factory=list)


class CheckpointDownloadStarted(Fact, frozen=True):
    """A checkpoint is read from storage."""

    checkpoint: str
    size_bytes: int = 0


class CheckpointDownloadProgress(Progress, frozen=True):
    """So much of the checkpoint is here."""

    checkpoint: str = ""


class CheckpointDownloadCompleted(Completed, frozen=True):
    """The checkpoint is here, or not."""

    checkpoint: str = ""


class ModelLoadStarted(Fact, frozen=True):
    """The model is put in place."""

    checkpoint: str = ""
    step: int = -1


class ModelLoadProgress(Progress, frozen=True):
    """So much of the model is in place."""

    checkpoint: str = ""


class ModelLoadCompleted(Completed, frozen=True):
    """The model can be trained, or not."""

    checkpoint: str = ""


class ModelSerializationStarted(Fact, frozen=True):
    """The model is copied out for saving."""

    step: int = -1
    checkpoint: str = ""


class ModelSerializationProgress(Progress, frozen=True):
    """So much of the model is copied."""

    checkpoint: str = ""


class ModelSerializationCompleted(Completed, frozen=True):
    """Training goes on; the copy is complete, or not."""

    checkpoint: str = ""


class CheckpointWriteStarted(Fact, frozen=True):
    """This rank's part is written."""

    checkpoint: str
    size_bytes: int = 0
    step: int = -1


class CheckpointWriteProgress(Progress, frozen=True):
    """So much of the part is written."""

    checkpoint: str = ""


class CheckpointWriteCompleted(Completed, frozen=True):
    """The part is durable, or not."""

    checkpoint: str = ""


class CheckpointUploadStarted(Fact, frozen=True):
    """This rank's part goes to object storage."""

    checkpoint: str
    size_bytes: int = 0
    step: int = -1


class CheckpointUploadProgress(Progress, frozen=True):
    """So much of the part was sent."""

    checkpoint: str = ""


class CheckpointUploadCompleted(Completed, frozen=True):
    """The part is in object storage, or not."""

    checkpoint: str = ""


KINDS: tuple[type[Fact], ...] = (
    BlobUploadStarted,
    BlobUploadProgress,
    BlobUploadCompleted,
    BlobDownloadStarted,
    BlobDownloadProgress,
    BlobDownloadCompleted,
    DatasetOpenStarted,
    DatasetOpenCompleted,
    BatchDownloadRequested,
    BatchDownloadStarted,
    BatchDownloadProgress,
    BatchDownloadCompleted,
    ResultDeserializeStarted,
    ResultDeserializeProgress,
    ResultDeserializeCompleted,
    ResultsApplyStarted,
    CheckpointDownloadStarted,
    CheckpointDownloadProgress,
    CheckpointDownloadCompleted,
    ModelLoadStarted,
    ModelLoadProgress,
    ModelLoadCompleted,
    ModelSerializationStarted,
    ModelSerializationProgress,
    ModelSerializationCompleted,
    CheckpointWriteStarted,
    CheckpointWriteProgress,
    CheckpointWriteCompleted,
    CheckpointUploadStarted,
    CheckpointUploadProgress,
    CheckpointUploadCompleted,
)
