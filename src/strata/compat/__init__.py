"""Modules that take the calls of other tools and record with Strata."""
