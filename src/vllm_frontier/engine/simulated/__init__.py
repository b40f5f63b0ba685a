"""A card described by a file, and a server on it that behaves like vLLM."""
