"""Generations: the members of a task, their ranks, and from which step they continue."""
