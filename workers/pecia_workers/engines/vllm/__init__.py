"""The engine that runs vLLM in its own process."""
