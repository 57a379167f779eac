"""The contract of a directory: what is asked of ZooKeeper, etcd or a model of them.

Made for one runtime and used by one client, in one *session*: what a client has there vanishes with its session, which
ends some time after the client has fallen silent. Each operation is atomic, safe to repeat, takes a local instant after
which its answer is of no use, and raises `StoreUnavailable` if asking again later may help (`OutcomeUnknown` if it may
have been carried out), and another `StoreError` if it will not.

*Proof.* An answer of which the directory knows that it came from a store that counts our session as alive, and will do
so for at least `trust` seconds from the moment when it was asked for, moves `proved_at` to that moment. An answer of a
server that may have been cut off from the others is no proof.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.contracts.messages import Page
from holdfast.stores.ordered.entries import Detail, Entry, Listing, Record


class Watcher(Protocol):
    """Who is told what happens. Called where the runtime runs its code; it only takes notes, and never blocks."""

    def woken(self, request_id: str) -> None:
        """Hear that something that this request watched has gone or changed. May come without a reason."""

    def told(self, message: str) -> None:
        """Hear what another client sent us."""

    def lost(self) -> None:
        """Hear that the session has ended, and all that it had is gone or will be."""

    def gap(self) -> None:
        """Hear that watches or messages may have been missed."""


class Directory(Protocol):
    """One client's session, and what it sees."""

    @property
    def trust(self) -> float:
        """For how many seconds what a session has is certainly kept, from when a proof was asked for."""
        ...

    @property
    def proved_at(self) -> float:
        """The local instant when the last proof was asked for, in this session; minus infinity if there is none."""
        ...

    def session(self) -> str:
        """Return what others send messages to; "" while there is no session. No two sessions have the same."""
        ...

    async def open(self, watcher: Watcher, until: float) -> None:
        """Connect and begin a session. Ends, or raises, with or without one, by `until`."""

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender unless this session has one of this request; return it, and a list that has it. A proof.

        What an earlier session of ours had under this request is removed first. One round trip if all goes well.
        If there is no session (any more), begins a new one. Its entry tells its token and its session.
        """
        ...

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request. True if it was there.

        Without `entry`, it is one whose join was not answered: it may be there, or may still come, and must not stay.
        """
        ...

    async def look(self, name: str, until: float) -> Listing:
        """List a name. Not older than what any earlier answer showed. Is a proof if there is a session."""
        ...

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add in one step, while `beside` is there.

        False if that, or something of `remove`, was not there any more: then nothing was done.

        CONTENDER and LIGHT are added to this session, others outlive it. Asked again after a lost reply, it may
        answer False although it was carried out before.
        """
        ...

    async def rewrite(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Change the text of an entry; wakes who watches it. False if it is gone."""
        ...

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake who watches these."""

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Tell the rest of entries, as they are or as they were listed; None of what is gone, if that is seen."""
        ...

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Have `woken(request_id)` called once when one of these goes or changes; False if one is gone already.

        Replaces what this request watched before; with no entries it only ends that. Nothing that happened since the
        entries were listed goes unnoticed. If watches are lost with a connection, `gap` is called.
        """
        ...

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a KEPT or BLOCK entry still counts; 0: it is over, and has been removed.

        Of a BLOCK this is asked only once its contender is gone; if nothing else tells when that was, then it was at
        the first such question of anybody. It counts at least as long as it should, as far as the store's clock goes.
        """
        ...

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Tell which entries of names are there, in this session. A proof; the session itself is renewed by it."""
        ...

    async def keep_alive(self, until: float) -> None:
        """Renew the session, if it needs to be asked for. Called every third of `trust`, while it is open."""

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that begin with `prefix`. See `Store.names`."""
        ...

    async def tell(self, session: str, message: str, until: float) -> None:
        """Send a message to another session, or to this one. Lost if it has ended. ASCII without line breaks."""

    async def close(self) -> None:
        """End the session, and with it all that it has. Also if it never opened."""

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a word to anyone."""
