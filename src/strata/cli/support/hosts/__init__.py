"""Hosts: those of a Ray cluster, and tables of their GPUs."""
