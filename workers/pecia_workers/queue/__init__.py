"""The way of a part from Redis into this process and out of it again."""
