"""Checkpoints: capture a state during training, commit it by one manifest, restore it."""
