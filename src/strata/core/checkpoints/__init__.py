"""Checkpoints: when to save, who has written what, and what is kept."""
