"""The contract of a directory: what an ordered store requires of ZooKeeper, etcd or a model of them.

A directory is made for one runtime and used by one client, in one *session*. What a client adds in its session vanishes
with the session, which ends some time after the client's last message. Each operation is atomic and safe to repeat. It
takes a local instant after which its reply is useless. It raises `StoreUnavailable` if a later repetition may help
(`OutcomeUnknown` if the store may have carried it out), and another `StoreError` if it will not.

*Proof.* A reply is a proof if the directory knows that the server counts our session as alive, and will do so for at
least `trust` seconds after the request was sent. It moves `proved_at` to the instant at which the request was sent. A
reply of a server that may have been cut off from the others is no proof.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from tenure.contracts.findings import Finding, Report
from tenure.contracts.messages import Page
from tenure.stores.ordered.entries import Detail, Entry, Listing, Record


class Watcher(Protocol):
    """Receives the events of a directory, where the runtime runs its code. It only takes notes and never blocks."""

    def woken(self, request_id: str) -> None:
        """Take note that an entry which this request watches was removed or changed. It may be a false alarm."""

    def told(self, message: str) -> None:
        """Take note of a message that another client sent to this session."""

    def lost(self) -> None:
        """Take note that the session has ended. All that was added in it is gone or will be."""

    def gap(self) -> None:
        """Take note that watches or messages may have been missed."""


@runtime_checkable
class ExaminableDirectory(Protocol):
    """A directory that tells how its servers are set."""

    def at_opening(self) -> list[Finding]:
        """Return what is wrong with the settings for locks, as far as `open` has shown it."""
        ...

    async def examine(self, ttl: float, timeout: float) -> Report:
        """Look at the settings. See `Examinable` in contracts/store.py."""
        ...


@runtime_checkable
class SendsRemovals(Protocol):
    """A directory that can send the removal of a contender and take the reply later, for `SendsReleases`."""

    def send_removal(self, name: str, entry: Entry, until: float, told: Callable[[bool, Listing | None], None]) -> bool:
        """Send the removal of a contender that has no entry besides its own; False if it cannot be sent now.

        `told` gets whether it was there, and if not, a listing; `False` and None if no reply comes, or none that tells.
        """
        ...

    def collect_replies(self) -> None:
        """Take the replies that have come by now and that no other request will take soon."""


class Directory(Protocol):
    """One client's session, and its view of the entries of all names."""

    @property
    def trust(self) -> float:
        """For how many seconds after the request of a proof the entries of a session certainly stay."""
        ...

    @property
    def proved_at(self) -> float:
        """The local instant at which this session's last proof was requested; minus infinity without a proof."""
        ...

    @property
    def lasts(self) -> float:
        """For how many seconds the entries of a client that has died stay, at most."""
        ...

    def session(self) -> str:
        """Return the session's address for messages; "" while there is no session. Addresses are unique."""
        ...

    async def open(self, watcher: Watcher, until: float) -> None:
        """Connect and begin a session. Return or raise by `until`, with or without a session."""

    async def join(self, name: str, record: Record, until: float) -> tuple[Entry, Listing]:
        """Add a contender, unless this session has one of this request; return its entry and a listing with it.

        The reply is a proof. What an earlier session of this client added under this request is removed first. It takes
        one round trip if nothing fails. If there is no session, or it has ended, a new one begins. The entry tells its
        position and its session.
        """
        ...

    async def withdraw_join(self, name: str, request_id: str, entry: Entry | None, until: float) -> bool:
        """Remove the contender of a request; return whether it was there.

        Without `entry`, its join got no reply: the entry may exist or may still arrive, and must not stay.
        """
        ...

    async def look(self, name: str, until: float) -> Listing:
        """List the entries of a name. The listing is no older than any earlier reply; a proof if there is a session."""
        ...

    async def look_at_all(self, names: Sequence[str], until: float) -> list[Listing]:
        """List the entries of several names, in few round trips. The listings are no older than any earlier reply."""
        ...

    async def change(
        self, name: str, remove: Sequence[Entry], add: Sequence[Record], until: float, beside: Entry | None = None
    ) -> bool:
        """Remove and add entries in one step, provided that `beside` and all entries of `remove` still exist.

        Otherwise return False and change nothing.

        CONTENDER and LIGHT entries are added to this session, others outlive it. A request that is repeated after a
        lost reply may return False although it was carried out before.
        """
        ...

    async def rewrite(self, texts: Sequence[tuple[str, Entry, str]], until: float) -> list[bool]:
        """Change the texts of contenders, each given with its name; return False for each contender that is gone."""
        ...

    async def pass_over(self, name: str, entry: Entry, text: str, until: float) -> bool:
        """Remove a contender of any session if its text still is `text`; return False if not, or if it is gone.

        No later change of the text by its client is carried out then.
        """
        ...

    async def stir(self, name: str, entries: Sequence[Entry], until: float) -> None:
        """Wake the watchers of these entries."""

    async def details(self, name: str, entries: Sequence[Entry], until: float) -> list[Detail | None]:
        """Return the details of entries, current or as listed; None for an entry that is found to be gone."""
        ...

    async def watch(self, name: str, request_id: str, entries: Sequence[Entry], until: float) -> bool:
        """Have `woken(request_id)` called once when one of these is removed or changes; False if one is gone already.

        The watch replaces the earlier watches of this id; with no entries it only ends them. It misses no event since
        the entries were listed. If a lost connection loses watches, `gap` is called.
        """
        ...

    async def remains(self, name: str, entry: Entry, until: float) -> float:
        """Return for how many seconds a PLACEHOLDER or BLOCK entry counts; 0 if its time is over and it was removed.

        Call it for a BLOCK only once its contender is gone. If nothing else tells when the contender vanished, the time
        of the first such call by any client counts. The entry counts at least as long as it should, by the store's
        clock.
        """
        ...

    async def check(self, entries: Sequence[tuple[str, Entry]], until: float) -> list[bool]:
        """Return for each entry whether it exists in this session. The reply is a proof and renews the session."""
        ...

    async def keep_alive(self, until: float) -> None:
        """Renew the session if this store needs it. Called every third of `trust` while the directory is open."""

    async def names(self, prefix: str, until: float, rest: object = None) -> Page:
        """Return a page of the names in use that begin with `prefix`. See `Store.names`."""
        ...

    async def tell(self, session: str, message: str, until: float) -> None:
        """Send a message to a session: ASCII without line breaks. The message is lost if the session has ended."""

    async def close(self) -> None:
        """End the session and remove all that was added in it. It may be called although `open` never was."""

    def abandon(self) -> None:
        """In a forked child: drop what was inherited, without a message to any other process."""
