"""Strata: a distributed-training runtime that remembers everything."""

__version__ = "0.1.0"

__all__ = ["__version__"]
