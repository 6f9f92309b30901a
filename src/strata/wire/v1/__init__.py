"""Generated from proto/strata/v1 by `make proto`; never edited."""
