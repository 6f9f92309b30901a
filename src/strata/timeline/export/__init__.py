"""A run for other tools: Parquet, JSON lines, Perfetto, OTLP, SQL."""
