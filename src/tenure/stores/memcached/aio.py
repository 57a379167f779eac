"""The link to memcached for asyncio: one connection for each server, which carries all requests of the event loop."""

import asyncio
from typing import Any

from tenure.runtimes.aio import AsyncioRuntime
from tenure.stores.memcached import errors
from tenure.stores.memcached.errors import BROKEN
from tenure.stores.memcached.greeting import QUESTIONS, server_of_greeting
from tenure.stores.memcached.link import MemcachedAddress, MemcachedAnswer, MemcachedRequest, MemcachedServer
from tenure.stores.memcached.options import MemcachedDeployment
from tenure.stores.memcached.pipeline import MemcachedPipeline
from tenure.stores.memcached.protocol import MetaReply
from tenure.transport.dial import dial_in_loop

CLOSING = 1.0
"""How long to wait for the event loop to close the sockets, in seconds."""


class MemcachedAsyncLink:
    """The link to the servers, for one event loop."""

    def __init__(self, runtime: AsyncioRuntime, deployment: MemcachedDeployment) -> None:
        """Prepare; nothing is connected yet."""
        self._now = runtime.now
        self._loop = runtime.loop
        self._connect_timeout = deployment.connect_timeout
        self._open: dict[MemcachedAddress, MemcachedPipeline] = {}
        self._connecting: dict[MemcachedAddress, asyncio.Task[MemcachedPipeline]] = {}
        self._all: set[MemcachedPipeline] = set()
        self._closed = False

    async def exchange(
        self, address: MemcachedAddress, request: MemcachedRequest, until: float, process: str = ""
    ) -> MemcachedAnswer | None:
        """Send a request on the connection to the server; return its replies, or None for another process."""
        if request.alone:
            return await self._exchange_alone(address, request, until)
        pipeline = self._open.get(address)
        if pipeline is None or not pipeline.is_open():
            pipeline = await self._connected(address, until)
        if process and pipeline.server.process != process:
            return None
        return await self._exchange(pipeline, address, request, until)

    async def command(self, address: MemcachedAddress, packed: bytes, until: float, process: str) -> MetaReply | None:
        """Send one command on the connection to the server."""
        answer = await self.exchange(address, MemcachedRequest(packed), until, process)
        return None if answer is None else answer.replies[0]

    async def server(self, address: MemcachedAddress, until: float) -> MemcachedServer:
        """Return what a server says of itself."""
        return (await self._connected(address, until)).server

    async def close(self) -> None:
        """Disconnect, and leave no socket behind. Requests under way end by OutcomeUnknown."""
        self._closed = True
        connecting: set[asyncio.Future[Any]] = set(self._connecting.values())
        for task in connecting:
            task.cancel()
        gone: set[asyncio.Future[Any]] = {pipeline.gone for pipeline in self._all}
        for pipeline in list(self._all):
            pipeline.close()
        for ending in (connecting, gone):
            if ending:
                await asyncio.wait(ending, timeout=CLOSING)

    def abandon(self) -> None:
        """In a forked child: let go of the sockets, and leave the event loop alone, which is the parent's."""
        self._closed = True
        for pipeline in self._all:
            pipeline.abandon()

    async def _exchange(
        self, pipeline: MemcachedPipeline, address: MemcachedAddress, request: MemcachedRequest, until: float
    ) -> MemcachedAnswer:
        left = until - self._now()
        if left <= 0.0:
            raise errors.too_late(address)
        try:
            replies = await pipeline.exchange(request, left)
        except BROKEN as error:
            raise errors.unanswered(address, error) from error
        return MemcachedAnswer(replies, pipeline.server)

    async def _exchange_alone(
        self, address: MemcachedAddress, request: MemcachedRequest, until: float
    ) -> MemcachedAnswer:
        pipeline = await self._connect(address, until)
        try:
            return await self._exchange(pipeline, address, request, until)
        finally:
            pipeline.close()

    async def _connected(self, address: MemcachedAddress, until: float) -> MemcachedPipeline:
        """Return the open connection to a server; all callers wait for one that is being made."""
        pipeline = self._open.get(address)
        if pipeline is not None and pipeline.is_open():
            return pipeline
        connecting = self._connecting.get(address)
        if connecting is None:
            if self._closed:
                raise errors.closed()
            connecting = self._loop.create_task(self._connect(address, self._now() + self._connect_timeout))
            self._connecting[address] = connecting
            connecting.add_done_callback(lambda task: self._note(address, task))
        await asyncio.wait({connecting}, timeout=max(0.0, until - self._now()))
        if not connecting.done():
            reached = any(each.address == address and each.is_open() for each in self._all)
            raise (errors.no_greeting if reached else errors.cannot_connect)(address, TimeoutError())
        if connecting.cancelled():
            raise errors.closed()
        return connecting.result()

    def _note(self, address: MemcachedAddress, task: "asyncio.Task[MemcachedPipeline]") -> None:
        del self._connecting[address]
        if not task.cancelled() and task.exception() is None:
            self._open[address] = task.result()

    async def _connect(self, address: MemcachedAddress, until: float) -> MemcachedPipeline:
        if self._closed:
            raise errors.closed()
        pipeline = MemcachedPipeline(self._loop, address)
        try:
            left = min(until - self._now(), self._connect_timeout)
            async with asyncio.timeout(max(0.0, left)):
                connected = await dial_in_loop(address.host, address.port, left)
                await self._loop.create_connection(lambda: pipeline, sock=connected)
        except OSError as error:
            pipeline.close()
            raise errors.cannot_connect(address, error) from error
        except BaseException:
            pipeline.close()
            raise
        self._all.add(pipeline)
        pipeline.gone.add_done_callback(lambda _: self._all.discard(pipeline))
        await self._greet(pipeline, address, until)
        return pipeline

    async def _greet(self, pipeline: MemcachedPipeline, address: MemcachedAddress, until: float) -> None:
        """Ask the server what it is; close the connection if it is no memcached or cannot keep locks."""
        replies: list[MetaReply] = []
        try:
            for question in QUESTIONS:
                replies += await pipeline.exchange(question, until - self._now())
                if not replies[-1].goes_on():
                    break
            pipeline.server = server_of_greeting(address, replies)
        except BROKEN as error:
            pipeline.close()
            raise errors.no_greeting(address, error) from error
        except BaseException:
            pipeline.close()
            raise
