"""The settings of an experiment: from arguments or a file, checked, kept, compared."""
