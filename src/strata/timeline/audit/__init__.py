"""Which samples were applied, compared with the order."""
