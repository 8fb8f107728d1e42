"""OpenAI's API on the fleet, below `/openai/v1`: files of requests, batches, and chat completions of one page."""
