"""The SDK of a training script: `strata.join` and everything behind it."""
