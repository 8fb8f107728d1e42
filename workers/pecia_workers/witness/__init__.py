"""What a language model wrote, held against an independent reading of the same page."""
