"""One worker process: Celery's pool of parts, the event loop that runs them, and its resources."""
