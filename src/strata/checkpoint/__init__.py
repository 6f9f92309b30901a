"""Checkpoints: capture a state without stopping, commit it by one manifest, restore any of it."""
