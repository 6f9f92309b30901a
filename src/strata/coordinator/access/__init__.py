"""Who sends a request, and what that sender may do."""
