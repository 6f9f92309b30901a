"""Restoring: reader, targets, overlaps of boxes."""
