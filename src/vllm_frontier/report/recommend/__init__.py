"""Which cells to serve with, what each costs against the others, and what comes nearest."""
