"""`pecia gateway`: serves the fleet over HTTP to clients with a key."""
