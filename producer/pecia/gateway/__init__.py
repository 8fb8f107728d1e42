"""`pecia gateway`: the fleet over HTTP, to clients with a key."""
