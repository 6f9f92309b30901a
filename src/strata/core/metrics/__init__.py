"""Metrics derived from facts; never recorded."""
