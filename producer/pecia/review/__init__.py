"""Review: people see doubts beside the page's picture, and correct them."""
