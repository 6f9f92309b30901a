"""Hostile processes of the simulator, and the random messages that they send."""
