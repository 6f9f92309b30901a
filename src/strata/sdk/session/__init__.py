"""The connection to the coordinator: registration, heartbeats, requests, membership."""
