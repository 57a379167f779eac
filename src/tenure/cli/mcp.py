"""The command `mcp`: tools by which coding agents share files and machines, over the Model Context Protocol.

An agent's lease is that of a handle. Nobody renews it in the background, so it is free after its time if the agent is
dead. The standard output belongs to the protocol: the server of the SDK keeps it for itself, and sends everything else
that is written there to the standard error.
"""

import asyncio
import functools
import importlib
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tenure.cli import output
from tenure.cli.commands import NAMESPACE, OWNER, URL, Address, Options, command, find_address
from tenure.cli.names import INTERVAL, Quarantine, is_free
from tenure.cli.output import Status, tell_warnings
from tenure.client import AsyncClient
from tenure.contracts.handles import check_reason, read_handle
from tenure.contracts.limits import check_ttl, describe_quarantine
from tenure.contracts.messages import NameView
from tenure.contracts.owner_metadata import OwnerMetadata
from tenure.core import handover
from tenure.errors import LockTimeout, TenureError, UsageError
from tenure.escaping import shown
from tenure.lease import AsyncLease
from tenure.outcome import Outcome
from tenure.primitives.lock import AsyncLock
from tenure.primitives.options import PlainLockOptions

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

Tool = Callable[..., Awaitable[output.Json]]

LONGEST_WAIT = 600
"""The longest wait of one call, in seconds."""

ANSWER = 30
"""For how long, in seconds, a call may take beyond its wait."""

MOST_NAMES = 100
"""How many names `list` returns."""

FILE = "file:"
"""How a name begins that is the path of a file."""

INSTRUCTIONS = """\
Locks that agents and programs on all machines share. Before you change what others may change at the same time (a \
file, a branch, a machine, a database), acquire its name, and release it when you are done. Acquire it for as long as \
you need, and renew in time: the lease ends after its seconds, whatever you do then. After that, or if a call says \
that your lease has ended, do not write any more: acquire again, and look at what others have changed."""


class _AgentLock(AsyncLock):
    """A lock whose lease shows its reason from the grant on, and not only once it is detached."""

    def __init__(self, client: AsyncClient, name: str, seconds: float) -> None:
        """Make the lock. Raises UsageError if the store keeps no lease of a handle, or not for so long."""
        session = client.session()
        handover.refuse_if_bound(session)
        check_ttl(seconds, session.store.capabilities)
        super().__init__(client, name, PlainLockOptions(ttl=seconds, timeout=0))

    async def acquire_for(self, reason: str, wait: float) -> AsyncLease:
        """Acquire the lock, and wait for it for `wait` seconds. Raises LockTimeout, StoreError."""
        owner = OwnerMetadata(self._client.session().owner, reason=check_reason(reason))
        return await self._acquire(replace(self._spec, metadata=owner.text()), wait)


class Tools:
    """The tools, on one client. `root` is the folder that the paths of files are relative to."""

    def __init__(self, client: AsyncClient, root: Path) -> None:
        self._client = client
        self._root = root

    async def acquire(self, name: str, seconds: float, reason: str, wait: float = 0) -> output.Json:
        """Acquire a name: file:PATH for a file, however its path is spelled, or any other text.

        The lease lasts for `seconds` from now on, unless you renew or release it by the handle that is returned. Others
        see the reason. With `wait`, stand in the queue for so many seconds, up to 600; else an error says at once who
        holds the name, why, and until when. The token grows with each lease of a name: give it to what checks tokens.
        """
        name = self._full(name)
        try:
            lease = await _AgentLock(self._client, name, seconds).acquire_for(reason, wait)
        except LockTimeout as error:
            view = await self._client.inspect(name)
            raise LockTimeout(_busy(view)) from error
        async with lease:  # if `detach` fails, nobody has a handle, and the end of this releases the lease
            handle = await lease.detach(seconds, reason=reason)
        token = read_handle(handle).token
        return {"handle": handle, "name": name, "token": token, "seconds": seconds, "owner": lease.owner}

    async def renew(self, handle: str, seconds: float) -> output.Json:
        """Let the lease of a handle last for at least so many seconds from now on. If it has ended, stop writing."""
        found = read_handle(handle)
        renewed = await handover.renew(self._client.session(), found, found.name, seconds)
        return {"name": found.name, "token": found.token, "seconds": renewed.ttl / 1_000_000}

    async def release(self, handle: str) -> output.Json:
        """Release the lease of a handle. If it had ended before, look at what others have done meanwhile."""
        found = read_handle(handle)
        outcome = await handover.release(self._client.session(), found)
        if outcome is not Outcome.RELEASED:
            raise UsageError(
                f"the lease of {shown(found.name)} (token {found.token}) had ended before, or a program has adopted "
                "it: nothing was released. Others may have changed what it protected: look before you go on."
            )
        return {"name": found.name, "token": found.token, "outcome": outcome.value}

    async def list(self, pattern: str = "*") -> output.Json:
        """List the names that are held or waited for: owners, reasons, ends, waiters. `pattern` is one of the shell."""
        names: list[output.Json] = []
        async for name in self._client.iter_names(pattern):
            view = await self._client.inspect(name)
            if view.holders or view.waiters:
                if len(names) == MOST_NAMES:
                    return {"names": names, "more": True}
                names.append(output.name_json(view))
        return {"names": names, "more": False}

    async def wait(self, name: str, wait: float) -> output.Json:
        """Wait until a name is free, for up to `wait` seconds (at most 600). This does not acquire the name."""
        name, loop, quarantine = self._full(name), asyncio.get_running_loop(), Quarantine()
        give_up_at = loop.time() + wait
        while True:
            view = await self._client.inspect(name)
            if is_free(view) or quarantine.is_over(view):
                return {"name": name, "free": True}
            if (left := give_up_at - loop.time()) <= 0:
                raise LockTimeout(_busy(view))
            await asyncio.sleep(min(INTERVAL, left))

    def _full(self, name: str) -> str:
        """Return a name; that of a file by its path from the root, or by its whole path if it is elsewhere."""
        if not name.startswith(FILE):
            return name
        try:
            path = (self._root / name.removeprefix(FILE)).resolve()
        except (OSError, RuntimeError, ValueError) as error:
            raise UsageError(f"{shown(name)} has no path of a file: {error}") from error
        return FILE + (path.relative_to(self._root) if path.is_relative_to(self._root) else path).as_posix()


def _bounded(wait: float) -> float:
    """Return a wait that is not too long. Raises UsageError for any other."""
    if not 0 <= wait <= LONGEST_WAIT:
        raise UsageError(f"wait={wait:g} is not from 0 to {LONGEST_WAIT} seconds: wait for less, and call again")
    return wait


def _busy(view: NameView) -> str:
    """Return what keeps a name: the owners, their reasons and the ends of their leases."""
    kept = [
        f"{shown(each.owner)} holds it (token {each.token}) for this reason: {shown(each.reason or 'none is given')}; "
        f"the lease ends in {each.expires_in:.1f} s at the latest, unless it is renewed"
        for each in view.holders
    ]
    if view.blocked_for:
        kept.append(f"it is kept from everybody for another {view.blocked_for:.1f} s after a lease ended")
    if view.quarantined_for:
        kept.append(describe_quarantine(view.quarantined_for))
    waiting = sum(waiter.alive for waiter in view.waiters)
    queue = f" {waiting} others wait for it." if waiting else ""
    return (
        f"{shown(view.name)} is not free: {'; '.join(kept) or 'an earlier waiter is granted it'}.{queue} Do other work "
        "first, or call acquire with a wait."
    )


def _answering(tool: Tool) -> Tool:
    """Return a tool that ends in time, and whose errors are texts for an agent."""
    from mcp.server.mcpserver.exceptions import ToolError

    @functools.wraps(tool)
    async def answer(**arguments: Any) -> output.Json:  # noqa: ANN401 - those of the tool
        try:
            async with asyncio.timeout(ANSWER + _bounded(arguments.get("wait", 0))):
                return await tool(**arguments)
        except TenureError as error:
            raise ToolError(str(error)) from error
        except TimeoutError as error:
            raise ToolError("the store did not answer in time, and may still do what you asked: see list.") from error

    return answer


def _server(tools: Tools) -> "MCPServer[Any]":
    """Return a server with the tools."""
    from mcp.server.mcpserver import MCPServer

    from tenure import __version__

    server: MCPServer[Any] = MCPServer("tenure", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    for tool in (tools.acquire, tools.renew, tools.release, tools.list, tools.wait):
        server.add_tool(_answering(tool))
    return server


@command(
    "mcp",
    "[URL]",
    *URL,
    NAMESPACE(help="A prefix of all names, such as the project."),
    OWNER,
)
def mcp(options: Options) -> int:
    """Serve tools to a coding agent over the Model Context Protocol: acquire, renew, release, list, wait.

    The agent starts the command, and talks to it by its standard input and output. Its leases last for the time that
    it says, and nobody renews them in the background. Start the command in the folder whose files the agents share.
    Needs the extra mcp: pip install 'tenure[mcp]'.

    Exits with 0 when its input ends; 64: wrong usage; 128+N: signal N ended it.
    """
    address = find_address(options)
    try:
        importlib.import_module("mcp.server.mcpserver")
    except ModuleNotFoundError as error:
        raise UsageError("`tenure mcp` needs the SDK of the protocol: pip install 'tenure[mcp]'") from error

    address.warn()
    tell_warnings()
    return asyncio.run(_run(address, options))


async def _run(address: Address, options: Options) -> int:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()

    def end(number: int) -> None:
        if not ended.done():
            ended.set_result(number)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, _frame: loop.call_soon_threadsafe(end, number))
    async with AsyncClient(address.url, namespace=options.namespace, owner=options.owner, advice=False) as client:
        server = _server(Tools(client, Path.cwd().resolve()))
        serving = asyncio.create_task(server.run_stdio_async())
        either: set[asyncio.Future[Any]] = {serving, ended}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if ended.done():  # a thread of the SDK reads the input, and nothing but the end of the input would end the thread
        os._exit(Status.SIGNALLED + ended.result())
    try:
        await serving
    except* OSError:  # the agent is gone, and so is the pipe to it
        pass
    return Status.DONE
