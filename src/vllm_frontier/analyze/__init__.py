"""From the tables `trials` and `runs` to what they mean: frames in, frames out, no I/O."""
