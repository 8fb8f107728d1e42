"""A fleet on one machine: embedded Postgres and Redis, and the supervisor behind `pecia up`."""
