"""What tests share, each once."""
