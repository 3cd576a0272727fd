"""The scheduler: what it hears and says, nodes, actors' lives, placement groups. Pure."""
