"""Pictures of a sweep: one module each, a frame in, a `Figure` out."""
