"""How protocol coroutines are run: by a thread, by asyncio, or by a simulation."""
