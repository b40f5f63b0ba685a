"""A cell as something to serve: a command, a config file, a container."""
