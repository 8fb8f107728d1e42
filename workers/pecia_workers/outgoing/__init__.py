"""The way out to addresses that strangers chose, for whatever calls them."""
