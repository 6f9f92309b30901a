"""Barriers and agreements: points at which all workers of a generation wait for each other."""
