"""Engines: how a server is called, what its log means, why it failed."""
