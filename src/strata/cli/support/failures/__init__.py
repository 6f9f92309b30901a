"""What `strata run` prints about failures of workers, and what to do about them."""
