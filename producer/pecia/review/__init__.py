"""Review: people check doubtful values beside the page's picture, and correct them."""
