"""OCR: from a claimed page to its text and verdict."""
