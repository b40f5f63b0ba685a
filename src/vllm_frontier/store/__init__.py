"""The files of a sweep: paths, schema, atomic writes, tables."""
