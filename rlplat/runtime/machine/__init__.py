"""What the runtime knows of the machine, and leaves in it: the session's folder, /proc, logs, hardware."""
