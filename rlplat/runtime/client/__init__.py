"""How a process takes part in the cluster: the work of the verbs, and what it hears from the others."""
