"""PyTorch datasets and loaders as data of a run."""
