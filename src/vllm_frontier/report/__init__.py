"""What a sweep found, for people and for other programs."""
