"""Documents that the fleet fetches itself: from the web through the guard, from buckets that it may read."""
