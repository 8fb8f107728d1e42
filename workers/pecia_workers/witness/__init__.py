"""What a language model wrote, compared with an independent reading of the same page."""
