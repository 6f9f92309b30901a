"""Dataset formats: how samples lie in files."""
