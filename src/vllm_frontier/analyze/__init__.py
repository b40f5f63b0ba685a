"""From tables to the frontier: pure functions, frames in, frames out."""
