"""What continuous integration runs, and how it chooses."""
