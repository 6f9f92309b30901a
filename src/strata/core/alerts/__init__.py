"""Alerts: conditions in facts and metrics that a person should know of, raised and resolved."""
