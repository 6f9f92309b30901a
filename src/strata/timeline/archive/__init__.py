"""Where runs lie, how they are written down and opened."""
