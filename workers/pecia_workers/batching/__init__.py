"""What a part costs an engine, and which parts run together."""
