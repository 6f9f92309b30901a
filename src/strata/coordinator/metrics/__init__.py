"""The coordinator's own metrics and their Prometheus format."""
