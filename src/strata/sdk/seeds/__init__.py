"""`TrainingOrchestrator`, `DatasetRegistry` and `ShardManager`: one method per call."""
