"""The client for asyncio. Modules of the same names one level up contain the logic that needs no waiting."""
