"""The two clients: a client has one store, one renewer, one channel and any number of locks.

Make one client per process, and keep it. `Client.lock` documents the options of locks.
"""

from tenure.client.aio import AsyncClient
from tenure.client.base import DEFAULT_TTL
from tenure.client.threads import Client

__all__ = ["DEFAULT_TTL", "AsyncClient", "Client"]
