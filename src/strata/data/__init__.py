"""Dataset formats, the batch reader, mixing and preview; works without a coordinator."""
