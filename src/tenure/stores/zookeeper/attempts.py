"""The outcome of the attempts to reach each server, so that a waiting request fails soon and with the reason.

kazoo tries all servers in turn, pauses and begins again, and only logs what fails. A *round* is one attempt at each
server. If all servers refused in a round, no server is there. A server that is there but does not serve may serve soon,
because it elects a leader or has just been started.
"""

import ssl
from collections.abc import Callable
from dataclasses import dataclass, field

from tenure.errors import StoreError, StoreUnavailable

NEVER = float("-inf")

Host = tuple[str, int]


@dataclass(slots=True, frozen=True)
class Failure:
    """The outcome of a failed attempt."""

    why: str
    final: bool = False
    """Whether the server refused or could not be reached, and will not serve us soon by itself."""
    distrust: bool = False
    """Whether certificates were the reason."""


UNTRIED = Failure("it was not tried yet")
CONNECTING = Failure("it does not answer")
CONNECTED = Failure("it takes connections, but does not answer")
UNDECIDED = (CONNECTING, CONNECTED)
CLOSED = Failure("it closed the connection")
UNKNOWN = Failure("its name is not known", final=True)


def failure_of(error: Exception) -> Failure:
    """Return the failure that an error of a connection stands for."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return Failure(f"its certificate is not trusted: {error.verify_message}", final=True, distrust=True)
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)):
        return CLOSED
    if isinstance(error, ssl.SSLError):
        return Failure(f"TLS handshake failed: {error.reason or 'no reason told'}", final=True, distrust=True)
    if isinstance(error, TimeoutError):
        return Failure("timed out")
    said = error.strerror if isinstance(error, OSError) else None
    return Failure((said or str(error) or type(error).__name__).lower().rstrip("."), final=True)


@dataclass(slots=True)
class Attempts:
    """The attempts of one client. Written by kazoo's thread, read by all threads."""

    hosts: list[Host]
    now: Callable[[], float]
    began: float = NEVER
    """The instant at which the current round began; minus infinity if a server was reached in it."""
    _refused: tuple[float, dict[Host, list[Failure]]] = (NEVER, {})
    """The instant when the last round began in which all servers refused, with their failures; a success resets it."""
    _round: dict[Host, dict[str, Failure]] = field(default_factory=dict[Host, dict[str, Failure]])
    """The failures of each host's addresses in this round."""
    _known: dict[Host, list[Failure]] = field(default_factory=dict[Host, list[Failure]])
    """The last known failures of each host. An undecided one counts only if there is no decided one."""
    _current: tuple[Host, str] | None = None

    def begin(self) -> None:
        """Begin a round."""
        self.began, self._round, self._current = self.now(), {}, None

    def trying(self, host: str, address: Host) -> None:
        """Record which server is being tried."""
        self._current = ((host, address[1]), address[0])
        self.note(CONNECTING)

    def note(self, failure: Failure) -> None:
        """Record the outcome of the current attempt."""
        if self._current is not None:
            host, address = self._current
            found = self._round.setdefault(host, {})
            found[address] = failure
            if failure not in UNDECIDED or all(each in UNDECIDED for each in self._known.get(host, ())):
                self._known[host] = list(found.values())

    def reached(self) -> None:
        """Record that a server accepted the session."""
        self.began, self._refused = NEVER, (NEVER, {})
        self._known, self._current = {}, None

    def one_was_reached(self) -> bool:
        """Return whether a server accepted the session in the current round."""
        return self.began == NEVER

    def end(self) -> None:
        """End a round. A host that was not tried in it has no address."""
        self._current = None
        if self.one_was_reached():
            return
        for host in self.hosts:
            if host not in self._round:
                self._round[host] = {"": UNKNOWN}
                self._known[host] = [UNKNOWN]
        if all(failure.final for found in self._round.values() for failure in found.values()):
            self._refused = self.began, {host: list(found.values()) for host, found in self._round.items()}

    def refusal(self, since: float) -> StoreError | None:
        """Return the error to raise if all servers refused in a round that began at `since` or later, else None."""
        began, found = self._refused
        return self._error(found) if began >= since else None

    def error(self) -> StoreError:
        """Return the error of a request that reached no server in time."""
        return self._error(dict(self._known))

    def _error(self, known: dict[Host, list[Failure]]) -> StoreError:
        found = {host: known.get(host, [UNTRIED]) for host in self.hosts}
        told = ", ".join(f"{_written(host)} ({_reasons(failures)})" for host, failures in found.items())
        if all(failure.distrust for failures in found.values() for failure in failures):
            return StoreError(f"no ZooKeeper server and client trust each other: {told}; {TRUST}")
        return StoreUnavailable(f"no ZooKeeper server can be reached: {told}; {CHECK}")


TRUST = "check ca, certfile, keyfile and the hosts in the URL, and whom the servers trust"
CHECK = (
    "check that they run and serve, that this machine may connect to them, and the hosts and ports in the URL, and "
    "whether they require TLS (use_ssl=true)"
)


def _written(host: Host) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def _reasons(failures: list[Failure]) -> str:
    return "; ".join(dict.fromkeys(failure.why for failure in failures))
