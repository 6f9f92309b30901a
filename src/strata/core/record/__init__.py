"""The record itself: reference of all kinds, snapshots, retention, salvage."""
