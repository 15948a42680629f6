"""Labs: one file, one claim, settled by running it."""
