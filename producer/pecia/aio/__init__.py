"""The client for asyncio: what waits, awaited. What is decided is decided by the modules of the same names above."""
