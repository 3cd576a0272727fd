"""The verbs in one process and thread, for debuggers, and nested in tasks and actors."""
