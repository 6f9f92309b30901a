"""Texts of the scripts and settings that `strata init` writes."""
