"""What was seen before, drawn again: buffers, their storage, and shards of them."""
