"""What users give us: the numbers of an observation in the dtype of a Box, and code, of which a line may raise and
which draws from the generators of its process and may close its stderr."""
