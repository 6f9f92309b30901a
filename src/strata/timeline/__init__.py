"""The read side: what a run recorded, in one order, scrubbed, traced and explained."""
