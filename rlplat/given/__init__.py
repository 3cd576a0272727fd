"""What users give us: code, of which a line may raise and which draws from the generators of its process and may close
its stderr."""
