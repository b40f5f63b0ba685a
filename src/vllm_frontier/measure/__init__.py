"""Measure a running server over HTTP, as a client would."""
