"""What one can ask of a model: one file for each method of `Model`, of the same name. types.py is what they share."""
