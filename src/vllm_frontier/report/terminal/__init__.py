"""What the terminal shows of a sweep: map, tables, progress."""
