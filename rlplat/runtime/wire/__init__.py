"""What travels between processes, and as which bytes."""
