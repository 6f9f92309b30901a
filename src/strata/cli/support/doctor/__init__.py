"""Checks of `strata doctor`: each measures one part and says what to do if it must be fixed."""
