"""A part that waits for others of its job: it is queued for a moment that never comes, until the ledger releases it."""

HELD = "CAST('9999-01-01 00:00:00+00' AS timestamptz)"
"""SQL: `run_at` of a held part. Nobody claims or publishes a part before its time."""
