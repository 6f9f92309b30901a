"""States as trees of arrays and plain values."""
