"""`pecia gateway`: the fleet over HTTP, to those who bear a key."""
