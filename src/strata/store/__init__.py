"""Event stores: where facts become durable, are read back, looked up and archived."""
