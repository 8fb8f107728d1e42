"""The engine that uses a server with OpenAI's API."""
