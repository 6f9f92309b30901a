"""Export of a checkpoint of any number of ranks to formats that other programs load."""
