"""OpenAI's API on the fleet: files of requests, batches of them, and one page at a time, below `/openai/v1`."""
