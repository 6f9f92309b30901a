"""Save, restore and hand over the state of a run."""
