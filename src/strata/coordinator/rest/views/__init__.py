"""What the API shows: responses from the present or a past state, and live patches."""
