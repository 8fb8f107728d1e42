"""What keeps promises when something breaks: relay, reconciler, reaper, deadlines. Any number of instances may run."""
