"""The engine that runs vLLM in the worker."""
