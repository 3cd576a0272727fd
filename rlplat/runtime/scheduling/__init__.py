"""The pure rooms of the scheduler: what it hears and says, nodes, actors' lives, placement groups."""
