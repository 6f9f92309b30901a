"""The messages of proto/strata/v1; `make proto` writes their description and types."""
