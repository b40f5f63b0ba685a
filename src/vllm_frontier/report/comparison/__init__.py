"""Sweeps side by side: what differs between them, as a document, for a terminal, and as a page."""
