"""The queue in Redis: claiming parts, returning them, announcing jobs."""
