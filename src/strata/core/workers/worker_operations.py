"""Facts about a worker's operations that take time: started, progress, completed.

The events of one operation have the same `op` in their envelopes, unique per attempt. Progress is
recorded at most every few seconds; a completion says whether the operation succeeded, and if not,
why. An operation without a completion was in progress when the process ended, or its end was not
recorded.
"""

from msgspec import field

from strata.core.events import Fact, kinds_in


class Progress(Fact, frozen=True, kw_only=True):
    """Base of progress facts: how much is done so far."""

    done_bytes: int


class Completed(Fact, frozen=True, kw_only=True):
    """Base of completion facts."""

    ok: bool
    error: str = ""


class BlobUploadStarted(Fact, frozen=True, kw_only=True):
    """The worker started to send a blob to a peer."""

    sentence = "started to send blob {blob} to {to}[, {size_bytes}], attempt {attempt}"

    blob: str
    to: str
    size_bytes: int
    attempt: int = 1
    what: str = ""


class BlobUploadProgress(Progress, frozen=True, kw_only=True):
    """How much of the blob was sent so far."""

    sentence = "sent {done_bytes}[ of blob {blob}] so far"

    blob: str = ""


class BlobUploadCompleted(Completed, frozen=True, kw_only=True):
    """The peer `to` confirmed the blob, or the upload failed.

    `sent_bytes` includes bytes that were sent again after a broken connection.
    """

    sentence = (
        "[{ok:?}sent|failed to send] [blob {blob}|a blob][ to {to}][, {sent_bytes}][ in "
        "{took_s}][: {error}]"
    )

    blob: str = ""
    to: str = ""
    sent_bytes: int = 0
    took_s: float = 0.0


class BlobDownloadStarted(Fact, frozen=True, kw_only=True):
    """The worker started to fetch a blob from a peer."""

    sentence = "started to fetch blob {blob} from {source}[, {size_bytes}], attempt {attempt}"

    blob: str
    source: str
    size_bytes: int
    attempt: int = 1
    what: str = ""


class BlobDownloadProgress(Progress, frozen=True, kw_only=True):
    """How much of the blob was received so far."""

    sentence = "fetched {done_bytes}[ of blob {blob}] so far"

    blob: str = ""


class BlobDownloadCompleted(Completed, frozen=True, kw_only=True):
    """The blob was received and verified, or the download failed."""

    sentence = (
        "[{ok:?}fetched|failed to fetch] [blob {blob}|a blob][ from {source}][, "
        "{received_bytes}][ in {took_s}][: {error}]"
    )

    blob: str = ""
    source: str = ""
    received_bytes: int = 0
    took_s: float = 0.0


class DatasetOpenStarted(Fact, frozen=True, kw_only=True):
    """A dataset is opened; its index is loaded, or its files are scanned to make one."""

    sentence = "started to open dataset {dataset}[ at {source}]"

    dataset: str
    source: str = ""


class DatasetOpenCompleted(Completed, frozen=True, kw_only=True):
    """The dataset can be read, or opening it failed.

    `range_bytes` were read from remote files that were not fetched as a whole. `ago_s` is how long
    ago opening ended, if the process opened the dataset before it joined.
    """

    sentence = (
        "[{ok:?}opened|failed to open] [dataset {dataset}|a dataset][ in {took_s}][: {error}]"
    )

    dataset: str = ""
    source: str = ""
    files: int = 0
    samples: int = 0
    range_bytes: int = 0
    took_s: float = 0.0
    ago_s: float = 0.0


class BatchDownloadRequested(Fact, frozen=True, kw_only=True):
    """A file with samples is not on this host and was requested; its download may be queued.

    `batch` is the batch that needs it, or empty while a dataset is opened. `attempt` counts the
    downloads of the file, this one included.
    """

    sentence = "asked for [{source}|a file][ for batch {batch}][, {size_bytes}], attempt {attempt}"

    batch: str
    size_bytes: int = 0
    dataset: str = ""
    source: str = ""
    attempt: int = 1


class BatchDownloadStarted(Fact, frozen=True, kw_only=True):
    """The download of a file with samples started; it was queued for `queued_s`."""

    sentence = (
        "started to download [{source}|a file][ for batch {batch}][, {size_bytes}][, "
        "after {queued_s} in the queue]"
    )

    batch: str
    size_bytes: int = 0
    dataset: str = ""
    source: str = ""
    attempt: int = 1
    queued_s: float = 0.0


class BatchDownloadProgress(Progress, frozen=True, kw_only=True):
    """How much of the file was downloaded so far."""

    sentence = "downloaded {done_bytes}[ of a file of batch {batch}] so far"

    batch: str = ""


class BatchDownloadCompleted(Completed, frozen=True, kw_only=True):
    """The file is on this host, or the download failed.

    `shared` if another process of the host fetched it meanwhile. `ago_s` is how long ago the
    download ended, if the process had not joined then.
    """

    sentence = (
        "[{ok:?}downloaded|failed to download] [{source}|a file][ for batch "
        "{batch}][{shared:?} (by another worker of its host)][ in {took_s}][: {error}]"
    )

    batch: str = ""
    dataset: str = ""
    source: str = ""
    done_bytes: int = 0
    attempt: int = 1
    queued_s: float = 0.0
    took_s: float = 0.0
    shared: bool = False
    ago_s: float = 0.0


class ResultDeserializeStarted(Fact, frozen=True, kw_only=True):
    """The worker started to decode a peer's training result."""

    sentence = "started to decode the result of batch {batch}"

    batch: str
    blob: str = ""


class ResultDeserializeProgress(Progress, frozen=True, kw_only=True):
    """How much of the result was decoded so far."""

    sentence = "decoded {done_bytes}[ of the result of batch {batch}] so far"

    batch: str = ""


class ResultDeserializeCompleted(Completed, frozen=True, kw_only=True):
    """The result was decoded, or decoding failed."""

    sentence = "[{ok:?}decoded|failed to decode] the result of [batch {batch}|a batch][: {error}]"

    batch: str = ""


class ResultsApplyStarted(Fact, frozen=True, kw_only=True):
    """The outer optimizer starts to apply the results of `workers` workers; `ResultsApplied` ends
    it."""

    sentence = "started to apply the results of {workers:worker} at step {step}"

    step: int
    workers: int
    batches: list[str] = field(default_factory=list)


class CheckpointDownloadStarted(Fact, frozen=True, kw_only=True):
    """The worker started to read a checkpoint from storage."""

    sentence = "started to download checkpoint {checkpoint}[, {size_bytes}]"

    checkpoint: str
    size_bytes: int = 0


class CheckpointDownloadProgress(Progress, frozen=True, kw_only=True):
    """How much of the checkpoint was read so far."""

    sentence = "downloaded {done_bytes}[ of checkpoint {checkpoint}] so far"

    checkpoint: str = ""


class CheckpointDownloadCompleted(Completed, frozen=True, kw_only=True):
    """The checkpoint was read, or reading it failed."""

    sentence = (
        "[{ok:?}downloaded|failed to download] [checkpoint {checkpoint}|a checkpoint][: {error}]"
    )

    checkpoint: str = ""


class ModelLoadStarted(Fact, frozen=True, kw_only=True):
    """The worker started to load the model."""

    sentence = "started to load the model[ from checkpoint {checkpoint}]"

    checkpoint: str = ""
    step: int = -1


class ModelLoadProgress(Progress, frozen=True, kw_only=True):
    """How much of the model was loaded so far."""

    sentence = "loaded {done_bytes} of the model[ from checkpoint {checkpoint}] so far"

    checkpoint: str = ""


class ModelLoadCompleted(Completed, frozen=True, kw_only=True):
    """The model was loaded, or loading it failed."""

    sentence = "[{ok:?}loaded|failed to load] the model[ from checkpoint {checkpoint}][: {error}]"

    checkpoint: str = ""


class ModelSerializationStarted(Fact, frozen=True, kw_only=True):
    """The worker started to copy the model for a save."""

    sentence = "started to copy the model[ for checkpoint {checkpoint}]"

    step: int = -1
    checkpoint: str = ""


class ModelSerializationProgress(Progress, frozen=True, kw_only=True):
    """How much of the model was copied so far."""

    sentence = "copied {done_bytes} of the model[ for checkpoint {checkpoint}] so far"

    checkpoint: str = ""


class ModelSerializationCompleted(Completed, frozen=True, kw_only=True):
    """The copy is complete and training continues, or copying failed."""

    sentence = "[{ok:?}copied|failed to copy] the model[ for checkpoint {checkpoint}][: {error}]"

    checkpoint: str = ""


class EvaluationStarted(Fact, frozen=True, kw_only=True):
    """`run.evaluate` began, after `step` steps; `samples` are those of the whole dataset."""

    sentence = "started to evaluate[ {samples:sample}] after {step:step}"

    step: int
    samples: int = 0


class EvaluationCompleted(Completed, frozen=True, kw_only=True):
    """The worker has the combined scores of all workers, or the evaluation failed."""

    sentence = "[{ok:?}evaluated the model|failed to evaluate the model][: {error}]"


class CheckpointWriteStarted(Fact, frozen=True, kw_only=True):
    """This rank started to write its part."""

    sentence = "started to write its part of checkpoint {checkpoint}[, {size_bytes}]"

    checkpoint: str
    size_bytes: int = 0
    step: int = -1


class CheckpointWriteProgress(Progress, frozen=True, kw_only=True):
    """How much of the part was written so far."""

    sentence = "wrote {done_bytes}[ of checkpoint {checkpoint}] so far"

    checkpoint: str = ""


class CheckpointWriteCompleted(Completed, frozen=True, kw_only=True):
    """The part is durable, or writing it failed."""

    sentence = (
        "[{ok:?}wrote|failed to write] its part of [checkpoint {checkpoint}|a checkpoint][: "
        "{error}]"
    )

    checkpoint: str = ""


class CheckpointUploadStarted(Fact, frozen=True, kw_only=True):
    """This rank started to upload its part to object storage."""

    sentence = "started to upload its part of checkpoint {checkpoint}[, {size_bytes}]"

    checkpoint: str
    size_bytes: int = 0
    step: int = -1


class CheckpointUploadProgress(Progress, frozen=True, kw_only=True):
    """How much of the part was uploaded so far."""

    sentence = "uploaded {done_bytes}[ of checkpoint {checkpoint}] so far"

    checkpoint: str = ""


class CheckpointUploadCompleted(Completed, frozen=True, kw_only=True):
    """The part is in object storage, or the upload failed."""

    sentence = (
        "[{ok:?}uploaded|failed to upload] its part of [checkpoint {checkpoint}|a "
        "checkpoint][: {error}]"
    )

    checkpoint: str = ""


KINDS: tuple[type[Fact], ...] = kinds_in(globals())
