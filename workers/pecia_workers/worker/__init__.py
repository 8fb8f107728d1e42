"""One worker process: the pool that Celery hands parts to, the loop that runs them, and what it owns."""
