"""Planning: tree search in board games, what acts by it, and the positions that are learnt from."""
