"""What a member shows of itself."""
