"""The settings of alerts, part of `strata.config.Settings`: rules, thresholds and channels."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from strata.core.alerts.alert_settings import DEFAULT_THRESHOLDS
from strata.setting_types import Count, Port, Seconds

ALERT_SECRETS = frozenset({"alert_webhook", "alert_smtp_password"})
"""The settings that are never shown."""


class AlertOptions(Struct, frozen=True, kw_only=True):
    """The settings of alerts."""

    """Alert rules (docs/ALERTS.md): names of those that are off, separated by commas, and the
    thresholds of the others."""
    alerts_off: str = ""
    alert_settle_s: Seconds = DEFAULT_THRESHOLDS.settle_s
    alert_spike_deviations: Annotated[float, Meta(gt=0, le=1000)] = (
        DEFAULT_THRESHOLDS.spike_deviations
    )
    alert_plateau_steps: Count = DEFAULT_THRESHOLDS.plateau_steps
    alert_worker_losses: Annotated[int, Meta(ge=1, le=8)] = DEFAULT_THRESHOLDS.worker_losses
    alert_worker_losses_within_s: Seconds = DEFAULT_THRESHOLDS.worker_losses_within_s
    alert_no_step_s: Seconds = DEFAULT_THRESHOLDS.no_step_s
    alert_slow_share: Annotated[float, Meta(gt=0, lt=1)] = DEFAULT_THRESHOLDS.slow_share
    alert_goodput_below: Annotated[float, Meta(gt=0, lt=1)] = DEFAULT_THRESHOLDS.goodput_below
    alert_goodput_window_s: Seconds = DEFAULT_THRESHOLDS.goodput_window_s
    alert_straggler_ratio: Annotated[float, Meta(gt=1, le=1000)] = (
        DEFAULT_THRESHOLDS.straggler_ratio
    )
    alert_straggler_s: Seconds = DEFAULT_THRESHOLDS.straggler_s
    alert_checkpoint_failures: Annotated[int, Meta(ge=1, le=8)] = (
        DEFAULT_THRESHOLDS.checkpoint_failures
    )
    alert_checkpoint_late_s: Seconds = DEFAULT_THRESHOLDS.checkpoint_late_s
    alert_disk_free_bytes: Annotated[int, Meta(ge=0, le=2**60)] = DEFAULT_THRESHOLDS.disk_free_bytes
    alert_disk_full_within_s: Seconds = DEFAULT_THRESHOLDS.disk_full_within_s

    """Messages about alerts: the least severity; webhook and form of its JSON; e-mail, its server
    and login; PEM file of the CA that signed the servers' certificates."""
    alert_notify_from: Literal["info", "warning", "error"] = "warning"
    alert_webhook: str = ""
    alert_webhook_format: Literal["auto", "slack", "discord", "generic"] = "auto"
    alert_email_to: str = ""
    alert_email_from: str = ""
    alert_smtp_host: str = ""
    alert_smtp_port: Port = 587
    alert_smtp_security: Literal["starttls", "tls", "none"] = "starttls"
    alert_smtp_user: str = ""
    alert_smtp_password: str = ""
    alert_ca: str = ""
