"""What a trained run and its exported file have in common when they read an observation: numpy only, below both."""
