"""What a run shows of itself while it trains."""
