"""What the API answers about alerts; shared with the command line, so it imports little."""

from typing import Literal, TypeAlias

from msgspec import Struct

AlertStatus: TypeAlias = Literal["open", "resolved"]
AlertSeverity: TypeAlias = Literal["error", "warning", "info"]


class AlertResponse(Struct, frozen=True):
    """An alert. `event` is the fact that raised it, `causes` are the events that show its
    condition, and `evidence` has what was measured and the thresholds in force.

    An alert with the status `resolved` has ended. `expired`: it was closed because of its age, and
    its condition may still hold; otherwise the condition has ended.

    The newest message to the channels in `pending` is not sent yet; `failed` did not take one.
    """

    id: str
    status: AlertStatus
    rule: str
    severity: AlertSeverity
    subject: str
    text: str
    task_id: str
    worker_id: str
    evidence: dict[str, float | str]
    event: str
    causes: list[str]
    count: int
    raised_at: int
    last_at: int
    resolved_at: int | None
    resolution: str
    channels: list[str]
    pending: list[str]
    failed: list[str]
    expired: bool = False


class ChannelTested(Struct, frozen=True):
    """What a channel did with a test message; `error` is empty if it was taken."""

    channel: str
    target: str
    error: str
