"""What the event stores in SQL databases share: rows, reading, writing."""
