"""What came out of an experiment: its directory, files for people and tools, analysis."""
