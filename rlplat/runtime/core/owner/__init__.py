"""What the owner of objects, tasks and actors knows of them, and what follows from what it hears. Pure."""
