"""What keeps promises when something breaks, and ends what was kept long enough. Any number of instances may run."""
