"""The cluster's log: lines of coordinator and workers, kept within a bound, searched, followed."""

from strata.coordinator.logs.entries import Line, LogEntry
from strata.coordinator.logs.follow import Skipped
from strata.coordinator.logs.handler import StoreHandler
from strata.coordinator.logs.query import Page, Query
from strata.coordinator.logs.store import LogStats, LogStore

__all__ = ["Line", "LogEntry", "LogStats", "LogStore", "Page", "Query", "Skipped", "StoreHandler"]
