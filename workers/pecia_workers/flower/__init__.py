"""Flower, the page on which people watch the fleet: behind a password, bounded, with nothing to press but revoke."""
