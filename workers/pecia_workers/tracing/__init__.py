"""The spans of the fleet: what is told of a part, a request, a callback."""
