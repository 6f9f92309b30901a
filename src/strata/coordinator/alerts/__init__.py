"""Alerts of a running coordinator: reads logged losses, evaluates the rules, sends messages."""
