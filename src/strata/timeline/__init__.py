"""Reading recorded runs: timeline, state at any moment, audit, explanations, SQL and exports."""
