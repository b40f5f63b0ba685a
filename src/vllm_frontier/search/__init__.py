"""Which cell is launched next: ask and tell, without I/O."""
