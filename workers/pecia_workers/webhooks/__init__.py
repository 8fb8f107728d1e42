"""Signed callbacks: the promise stands in Postgres, the guard decides whom we may call, retries are rows."""
