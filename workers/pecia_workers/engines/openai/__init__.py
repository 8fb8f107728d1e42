"""The engine that asks a server with the interface of OpenAI."""
