"""The REST API, the live stream and the dashboard's files."""
