"""Hosts: their measured health, and their exclusion from placement."""
