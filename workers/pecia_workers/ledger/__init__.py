"""Every SQL statement of the fleet. Postgres is the truth; what it has not committed has not happened."""
