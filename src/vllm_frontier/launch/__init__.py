"""Launch a server in a process tree of its own, and leave nothing of it behind."""
