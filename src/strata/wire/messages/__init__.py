"""Conversion between protobuf messages and the core's commands, facts and state."""
