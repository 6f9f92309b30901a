"""Saving: capture, staging, parts, sidecars."""
