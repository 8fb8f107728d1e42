"""Every SQL statement of the fleet. Postgres is the source of truth: uncommitted work counts as not done."""
