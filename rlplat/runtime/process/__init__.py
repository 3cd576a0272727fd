"""What one Python process is before it is connected to anything: its signals, its own frames, spans, stacks."""
