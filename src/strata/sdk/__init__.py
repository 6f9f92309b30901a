"""What a training script imports: join, data, checkpoints, events."""
