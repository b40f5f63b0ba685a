"""Find which vLLM settings start on a card, and which of those are fastest."""

__version__ = "0.1.0"
