"""What people see: terminal tables and commands to paste."""
