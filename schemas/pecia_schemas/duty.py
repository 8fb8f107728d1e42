"""Who of the fleet is on duty: the one condition by which the fleet, its operators and its clients tell."""

ON_DUTY = "workers.stopped_at IS NULL AND workers.seen_at > now() - interval '30 seconds'"
"""SQL about a row of `workers`: it has not stopped, and six heartbeats have not been missed in a row."""
