"""What a sweep leaves on disk: names, schemas, atomic writes, one writer at a time."""
