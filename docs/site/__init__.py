"""Builds the documentation site from docs, the code and the benchmark results."""
