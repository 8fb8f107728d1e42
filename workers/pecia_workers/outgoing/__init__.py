"""Outgoing requests to addresses chosen by submitters: the guard, documents by URL, callbacks."""
