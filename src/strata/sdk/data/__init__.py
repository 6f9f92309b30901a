"""The loops of a script over a dataset."""
