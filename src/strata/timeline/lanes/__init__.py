"""What each worker's time went to."""
