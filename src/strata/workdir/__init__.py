"""Folders that travel with tasks: reading them, pieces by digest, unpacking."""
