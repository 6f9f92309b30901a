"""Background jobs on the log: compaction, archiving, moving, deleting, salvage."""
