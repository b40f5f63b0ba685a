"""What a sweep will launch and how long that takes, before it and on a described card."""
