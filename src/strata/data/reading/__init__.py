"""Batches of a run: steps, read-ahead, mixing, lane transforms, preview."""
