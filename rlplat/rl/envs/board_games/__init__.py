"""Board games of two players: the games, an opponent that searches ahead, and both as an environment."""
