"""The client for threads. The options of each primitive are documented here, for both clients."""

import inspect
import warnings
from collections.abc import Callable, Coroutine, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from tenure.client.base import DRAIN_TIMEOUT, ClientBase
from tenure.client.checks import JOBS
from tenure.contracts.findings import Report
from tenure.contracts.limits import check_duration
from tenure.contracts.messages import HolderView, NameView
from tenure.core.session import Session
from tenure.entering import EnteredByWith
from tenure.errors import BlockedEventLoop, Wait
from tenure.explanation import Explanation
from tenure.lease import Lease
from tenure.primitives.lock import Lock
from tenure.primitives.options import (
    Busy_co,
    ElectionOptions,
    MultiLockOptions,
    OnceOptions,
    Options,
    PlainOptions,
)
from tenure.reentry import holds, is_inside, reentered
from tenure.runtimes.ending import close_at_the_end, ending
from tenure.runtimes.tasks import in_event_loop
from tenure.runtimes.threads import ThreadsRuntime, complete, drive

if TYPE_CHECKING:
    from tenure.primitives.counter import Counter
    from tenure.primitives.election import Election
    from tenure.primitives.history import HistoryEntry
    from tenure.primitives.jobs import Job, JobView
    from tenure.primitives.limit import Limit
    from tenure.primitives.multilock import MultiLock
    from tenure.primitives.once import OnceJob
    from tenure.primitives.rwlock import RWLock
    from tenure.primitives.semaphore import Semaphore
    from tenure.primitives.stock import Stock


class Client(EnteredByWith, ClientBase):
    """Locks for threads. All threads can share a client; close it, or use it with `with`, to stop its own threads.

    The first operation starts two daemon threads: the channel, which receives notifications from the store, and the
    renewer, which renews all leases in the background. In a coroutine use `AsyncClient`: a `Client` blocks the event
    loop while it waits. In a signal handler or a `__del__` that comes in the middle of another call, a release runs in
    the background, and everything else raises UsageError: set a flag there.
    """

    _session: Session | None = None

    def lock(
        self,
        name: str,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[PlainOptions[Busy_co]],
    ) -> Lock[Busy_co]:
        """Make a lock on `name`: any non-empty str of up to 512 bytes of UTF-8.

        Args:
            name: what to lock. In a decorator, a format string for the arguments of the call; otherwise used as it is.
            ttl: the crash bound, in seconds: how long the lock stays locked after its holder fell silent. The lease of
                a live holder is renewed in the background, however long it works. Default: that of the client.
            timeout: how long to wait, in seconds; None: for ever; 0: ask once.
            lock_delay: how long, in seconds, nobody gets the lock after a lease expired (not after a release).
            max_hold: after how many seconds the lease is no longer renewed, so that a stuck holder loses it.
            min_hold: how long, in seconds, after the grant nobody else gets the lock, even if it is released before:
                another machine whose clock is a little behind does not run a quick job again. At most ttl and max_hold.
            on_lost: called once with a LeaseLost when a lease is lost, in the thread that notices the loss, mostly the
                renewer's. It must not block.
            on_revoke: called once with the lease when somebody requests a revocation by `revoke`. It must not block.
            detect_deadlock: whether to look, while waiting, for threads or tasks that wait for each other in a circle:
                one of them gets DeadlockDetected. All of them must have this option. Each acquisition then has its own
                place in the store's queue, and there is no local hand-off.
            busy: what is done while another holds the lock: "wait" waits (the default), "raise" raises LockTimeout at
                once, "skip" is for decorators: the function is not called, and the call returns None, at once or when
                the `timeout` is over, if one is given.
            max_waiters: raise LockTimeout at once if so many wait already. An acquisition then asks first whether the
                lock is free, and if it is not, how many wait: each of this client's waiters, and every other client
                once. Those who ask at the same time may exceed the number by some.
            linger: how long, in seconds, this client keeps a released lease, so that it can acquire the name again
                without a request to the store. To all other clients the name is held meanwhile, also in `inspect`. A
                request of another client ends that at once: a waiter is granted the name; `try_acquire` is refused once
                and will succeed the next time.
            reentrant: whether a thread (or task) that holds the lock may acquire it again: it gets another lease with
                the same token, and the release of the last lease releases the name. If the lease is lost, `acquire`
                raises LeaseLost until all leases of the name that the thread has are released.
            fair: False for throughput: a newcomer may take the lock when it is free, even while another client that
                waits is being woken (barging). Locks of the same name with fair=True are never passed.
            fair_after: with fair=False, for how long, in seconds, a waiter may be passed: from then on the next release
                hands the lock to the waiters in their order, so nobody starves (default: 0.1).
            renew: False for a lease that is not renewed: it ends `ttl` seconds after its grant, or as the last `extend`
                says, which may also shorten it. Nothing else ends it before but a release: neither `close` nor the end
                of the process, unless the store ties it to a session (ZooKeeper, etcd, advisory and named locks).
            wait_for_release: False to send the release at the end of a `with` and wait for no reply (Redis, etcd, and
                locks on PostgreSQL; else it waits): the `with` ends a round trip earlier, and nobody is told what the
                reply says but by the log and an event. Somebody who is told of the end by another way may find the name
                held for as long as the release is under way. `release()` waits. Default: that of the client.
            template: what metrics call the lock, whatever its name, as "invoice-{n}" for f"invoice-{n}". The name in a
                decorator is one. Without it, metrics know only the kind of primitive.

        Raises UsageError if a value is not allowed.
        """
        made = self._check.lock(ttl, timeout, options)
        if made.reentrant:
            from tenure.primitives.reentrant import ReentrantLock

            return ReentrantLock(self, name, made)
        return Lock(self, name, made)

    def semaphore(
        self,
        name: str,
        permits: int | None,
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[Options[Busy_co]],
    ) -> "Semaphore[Busy_co]":
        """Make a semaphore on `name`: each lease takes one or more of its `permits` (from 1 to 1048575).

        All users of the name must give the same number of permits, else acquiring raises UsageError. `resize` changes
        the number; without it, the number can change only while nobody holds or waits.

        With `permits=None`, each acquisition reads the number that the last `resize` has set from the store. So one
        `resize` changes it for all nodes. Before the first `resize`, an acquisition takes the number of the present
        users of the name, and raises UsageError if there are none.

        Locks, semaphores and reader/writer locks share their names. Waiters are served first come, first served,
        however many permits they ask for.

        The other arguments and errors are those of `lock`; also raises UsageError if the store keeps no semaphores.
        """
        from tenure.primitives.semaphore import Semaphore

        return Semaphore(self, name, permits, self._check.semaphore(permits, ttl, timeout, options))

    def rwlock(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[Options[Busy_co]]
    ) -> "RWLock[Busy_co]":
        """Make a reader/writer lock on `name`, with the locks `read()` and `write()`.

        Up to 1048576 readers share the lock; a writer holds it alone. Readers and writers are served first come, first
        served, so neither starves. For this reason no lease is reentrant, and a read lease cannot become a write lease;
        but a write lease can be downgraded.

        The arguments and errors are those of `lock`; also raises UsageError if the store keeps no reader/writer locks.
        """
        from tenure.primitives.rwlock import RWLock

        return RWLock(self, name, self._check.rwlock(ttl, timeout, options))

    def multilock(
        self,
        names: Iterable[str],
        *,
        ttl: float | None = None,
        timeout: float | None = None,
        **options: Unpack[MultiLockOptions],
    ) -> "MultiLock":
        """Make a lock on several names (up to 1000): a holder has all of them or none.

        The names are acquired in one fixed order, whatever order you give, so that users of overlapping names never
        deadlock. A multilock and a `lock` of one of its names exclude each other. If one lease of the group is lost,
        all are. The embedded store, `memory://` and a Redis server grant all free names in one step; a Redis Cluster,
        whose names lie on several nodes, grants them one after another.

        The `timeout` counts for all names together, and `max_hold` from the last grant. A decorator fills the names
        from the arguments of each call; those that are equal then are one. The other arguments and errors are those of
        `lock`; also raises UsageError if a name is given twice.
        """
        from tenure.primitives.multilock import MultiLock

        return MultiLock(self, names, self._check.multilock(ttl, timeout, options))

    def election(
        self, name: str, *, ttl: float | None = None, timeout: float | None = None, **options: Unpack[ElectionOptions]
    ) -> "Election":
        """Make an election on `name`: `campaign` to become the leader, or `observe` the leaders.

        A leader that died is followed by another when its ttl has run out. A leader that is alive but stuck is followed
        only if there is a `max_hold`. The arguments and errors are those of `lock`. The name is a lock's name: the
        holder of a lock on this name is the leader.
        """
        from tenure.primitives.election import Election

        return Election(self, name, self._check.election(ttl, timeout, options))

    def counter(self, name: str) -> "Counter":
        """Make a counter on `name`, which begins at 0.

        Counters, limits, stocks and locks of the same name have nothing to do with each other. Raises UsageError if the
        store keeps no counters.
        """
        from tenure.primitives.counter import Counter

        return Counter(self, name, self._check.cells("counters"))

    def limit(
        self,
        name: str,
        rate: int,
        per: float | str,
        *,
        smooth: bool = False,
        burst: int | None = None,
        timeout: float | None = None,
        template: str = "",
    ) -> "Limit":
        """Make a limit on `name`: at most `rate` units in any `per` seconds, as soon as they are wanted.

        Args:
            name: the name of the limit.
            rate: the number of units.
            per: a number of seconds, or a window of the calendar: "hour" or "day" (in UTC), "week" or "month", the last
                three with or without a time zone, as "day Europe/Berlin".
            smooth: space the units evenly, but for `burst` of them after a pause: in any half-open window of `per`
                seconds at most rate + burst - 1 units pass.
            burst: how many units may pass at once with smooth=True (default: 1).
            timeout: how long `acquire` and decorated functions wait if they are not told, in seconds; None: for ever.
            template: what events and metrics call the limit instead of its name.

        All users must give the same numbers; another rate counts at once for whoever comes next. Of a rate above 100
        units come back up to a hundredth of `per` later. A limit that nobody uses is forgotten by the store. Raises
        UsageError if a number is not allowed, or the store keeps no limits.
        """
        from tenure.primitives.limit import Limit, rule_of

        prefix, rule = self._check.cells("limits"), rule_of(rate, per, burst, smooth=smooth)
        return Limit(self, name, prefix, rule, timeout=timeout, template=template)

    def stock(self, name: str, segments: int = 8, *, template: str = "") -> "Stock":
        """Make a stock on `name`, which is empty at first: `restock` it, then `take` or `reserve` units.

        The units lie in `segments` places (up to 32), so that those who take some at the same time rarely wait for each
        other; in a Redis Cluster the segments lie on several nodes. All users must give the same number, else every
        call raises UsageError. Raises UsageError if the store keeps no stocks.
        """
        from tenure.primitives.stock import Stock

        return Stock(self, name, self._check.cells("stocks"), segments, template)

    def once(self, job: str, **options: Unpack[OnceOptions]) -> "OnceJob":
        """Make a job that runs once in each window, or once for a key, over all clients of the store.

        Call `run(function, *args)` on every node, or decorate the function. One node runs it; the store keeps that it
        is done, so a late node does not run it again. The window is named by the store's clock, never by a node's.

        Args:
            job: the name of the job.
            window: "hourly", "daily", "weekly", "monthly" or a number of seconds, counted in UTC; "daily
                Europe/Paris"; or a cron expression of five fields with or without a time zone,
                "0 3 * * 1-5 Europe/Paris" (the extra `tenure[cron]`).
            key: instead of a window: run once for this key for ever, for instance the revision of a migration.
            attempts: how many runs may begin in a window (or for a key) if runs fail or their nodes die (default: 1).
                After a failure the next one waits for a back-off of 1 s, which doubles up to 60 s.
            at_least: the least time, in seconds, between the beginnings of two runs (default: 0).
            at_most: for how long, in seconds, a run may go on: then it has failed, its lease is lost, and another
                attempt may begin. An async function is cancelled then; a thread cannot be stopped, and goes on until
                it ends by itself. None: for ever (the default), so a run that hangs stops the job on all nodes.
            busy: what a call does while another node runs the job: "skip" returns at once (the default of a window),
                "wait" waits until it is done, and takes over if it fails (the default of a key), "raise" raises
                LockTimeout.
            ttl: the crash bound of a run, in seconds: how long after its node died another attempt may begin.
            timeout: how long "wait" waits, in seconds, before it raises LockTimeout; None: for ever.
            max_waiters: with "wait": raise LockTimeout at once if so many wait already.
            keep: for how many seconds after its last run began or ended a key is remembered, by the store's clock, and
                with it what that run returned: every later call returns it as `OnceResult.value`, as JSON gives it
                back. If JSON cannot express it, or it takes more than 16 KiB, the job is done all the same, and
                every call raises ResultNotKept. None: the key is remembered for ever, without a result.
            fingerprint: a str or any other JSON value, of which the store keeps a hash: what calls for one key have in
                common, for instance the body of a request. A call whose key came before with another fingerprint
                runs nothing, and raises FingerprintMismatch. None: the call does not ask.
            template: what events and metrics call the job, as of `lock`.

        If the store's clock steps back by up to an hour, or the clocks of the members of a store disagree by as much,
        no window is run twice. What a store forgets, for instance in a failover, may be run again: see the guarantees
        of the store.

        Raises UsageError if a value is not allowed, or the store keeps no cells.
        """
        from tenure.primitives.once import OnceJob

        return OnceJob(self, self._check.once(self, job, options))

    def job(self, name: str) -> "Job":
        """Return what an operator can do with a job: pause, resume, repeat and forget it."""
        from tenure.primitives.jobs import Job

        self._check.cells(JOBS)
        return Job(self, name)

    def jobs(self) -> "list[JobView]":
        """Return the jobs of this client's namespace with their last runs, sorted by name."""
        return drive(self._jobs())

    def history(self, name: str) -> "list[HistoryEntry]":
        """Return what clients with `record=True` have written of `name`, the oldest first; see `HistoryEntry`.

        Raises StoreError if the store does not answer, and UsageError if it keeps no histories.
        """
        return drive(self._history(name))[0]

    def adopt(self, handle: str, ttl: float | None = None, *, timeout: float | None = None) -> Lease:
        """Go on with the lease of a handle, which `lease.detach()` returned or `tenure acquire` printed.

        From then on this client renews the lease, for `ttl` seconds each (None: that of the handle). Its token is
        larger than before, and the name was held by nobody else meanwhile. A lease that was detached is adopted at
        once. If it was adopted before, the last adopter gets it: the one before is refused at its next renewal, so this
        call waits until that one no longer takes the lease for its own, for at most its ttl.

        Raises LeaseLost if the lease has ended; LockTimeout if an earlier adopter may hold it for longer than `timeout`
        seconds (None: wait): then nothing has changed; UsageError if the text is no handle, the name is not of this
        client's namespace, the store hands over no leases, or grants none for this ttl; StoreError if the store did not
        answer, or is in quarantine: calling again is safe.
        """
        return drive(self._adopt(Lease, handle, ttl, timeout))

    def inspect(self, name: str) -> NameView:
        """Return who holds `name` and who waits for it."""
        return self._short(drive(self.session().inspect(self._full(name))))

    def why(self, name: str, *, weight: int = 1, owner: str | None = None) -> Explanation:
        """Return what keeps `name` from being granted, who holds it, who waits, and what to do about it.

        It is explained for a newcomer that asks for `weight` permits, 1048576 for a writer; or, with `owner`, for the
        first waiter of that owner. Meant for people: it takes one request for a name that is held, and a few more for a
        name with a deadlock or a job, or to find what was meant by a name that nobody uses. Waiters of this client that
        wait for a local hand-off are shown; those of other clients are not.

        Raises UsageError if no waiter has that owner, and StoreError if the store did not answer.
        """
        return drive(self._why(name, weight, owner))

    def names(self, pattern: str | None = None) -> list[str]:
        """List the names of this client's namespace that are held or waited for, sorted; see `iter_names`."""
        return sorted(self.iter_names(pattern))

    def iter_names(self, pattern: str | None = None) -> Iterator[str]:
        """Yield the names that `names` returns, in no order, page by page as the store lists them.

        The pattern is that of a shell: `*`, `?`, `[abc]`. The store finds the names that begin with the text before the
        first of these characters; the client matches the rest. A name that is in use during the whole listing is
        yielded exactly once; a name that is acquired or released meanwhile may be yielded or not. Each page is
        requested when it is needed, within `operation_timeout`. Raises StoreError.
        """
        rest: object = None
        while True:
            page = drive(self._page(pattern, rest))
            yield from self._matching(page.names, pattern)
            if (rest := page.rest) is None:
                return

    def deadlocks(self) -> list[tuple[Wait, ...]]:
        """Return all deadlocks on names of this client's namespace, of any process: each is a circle of waits.

        Only locks with `detect_deadlock=True` are seen. Inspects every name in use: meant for people, not for programs.
        """
        return drive(self.session().deadlocks())

    def revoke(self, name: str, *, force: bool = False, token: int | None = None) -> list[HolderView]:
        """Ask the holders of `name` to let go; with `force`, take it from them. Return these holders.

        A holder that is asked hears of it by `lease.on_revoke` and `lease.revoking`, and may go on: no lease is lost.
        The revocation request can get lost, and may not reach a lease in its first second: repeat it. With `force`, the
        leases are lost at once, the name is handed over, and late writes of the old holders carry smaller fencing
        tokens than any later lease.

        With `force` and a `token`, only the holder that `inspect` shows with this token loses its lease: never a holder
        that was granted the name since you looked, nor the holders of other permits.
        """
        return drive(self._revoke(name, token, force=force))

    def end_quarantine(self) -> float:
        """End the quarantine of the store at once; return how many seconds it would still have lasted.

        A Redis that restarted, failed over or is new may have forgotten leases, so it grants nothing for `max_ttl`
        (30 s) or longer, as a forgotten lease may last. End the quarantine only if you know that nobody works under a
        lease from before: that holder and the next one would work at the same time. Returns 0.0 if there was no
        quarantine.

        Raises UsageError if the store never forgets, StoreError if the store did not answer (then call it again).
        """
        return drive(self.session().end_quarantine())

    def examine(self, ttl: float | None = None) -> Report:
        """Look at the settings of the store, and return what is wrong with them for locks, as `tenure doctor` does.

        `ttl` is the longest ttl, in seconds, that your program uses (default: 30, or the longest that the store
        grants). Sends a few requests to each server, each within
        `operation_timeout`, and writes nothing; the store need not be fit to be opened. What a server does not tell is
        in `Report.unseen`. Raises StoreError if no server answers.
        """
        return self._with_title(drive(self._examine(ttl)))

    def drain(self, timeout: float = DRAIN_TIMEOUT) -> bool:
        """End the work of this client in order, and close it; return whether all leases were released in time.

        From the call on, each acquisition, and each wait for one, raises Stopped: nothing new is held, and no place in
        a queue is left behind. Who holds a lease goes on, and gets a revocation request (`on_revoke`, `revoking`), for
        it is time to end. Leadership is handed on: a term is lost here first, so that its body stops, and is then
        released at once, or when the `with` that entered it is left. After `timeout` seconds, or as soon as nothing is
        held, the client is closed: that releases what is left. Other calls, such as a renewal or an inspection, work
        until then.

        Raises UsageError within another call of Tenure in this thread: in a signal handler use `release_on_sigterm`.
        """
        check_duration(timeout, "timeout")
        if is_inside(self._session_mutex):
            raise reentered()
        self._drained = True  # first, so that no session is begun from now on
        session = self._session
        try:
            return session is None or drive(session.drain(timeout))
        finally:
            self.close()

    def close(self) -> None:
        """Release all leases, and stop. Idempotent. Raises UsageError within another call of Tenure in this thread.

        It waits for the releases that other threads have begun. A `with` of another thread whose body still runs is not
        waited for: its lease is lost. Call `drain()` first if that may be so.
        """
        if is_inside(self._session_mutex):
            raise reentered()
        self._closed = True  # first, so that a thread that begins a session now finds it
        self._close_session(drive)

    def _close_session(self, run: Callable[[Coroutine[Any, Any, None]], None]) -> None:
        for session in self._take_sessions():
            try:
                run(session.close(None if ending() else session.runtime.mark()))
            except BaseException:
                self._session = session  # so that another call, or the end of the process, releases the rest
                raise

    def _take_sessions(self) -> list[Session]:
        session, self._session = self._session, None
        return [] if session is None else [session]

    def session(self) -> Session:
        """Return the session of this process; internal."""
        session = self._session
        return session if session is not None else self._begin()

    def _begin(self) -> Session:
        if in_event_loop():
            warnings.warn(
                f"{self!r} is used in a thread that runs an event loop, and blocks the loop while it waits: use "
                "AsyncClient there, or asyncio.to_thread().",
                BlockedEventLoop,
                stacklevel=_stack_level(),
            )
        if holds(self._session_mutex):
            raise reentered()
        with self._session_mutex:
            session = self._session
            if session is None:
                session = self._session = self._start(ThreadsRuntime())
                if self._drained:  # by another thread, which has not seen the session
                    session.draining, session.acquires = True, False
                close_at_the_end(self)
            if not self._closed:
                return session
        # Another thread has closed the client meanwhile, and may not have seen the session. The call that needs it may
        # be driven already: then the close is a part of that call.
        self._close_session(complete if is_inside(self._session_mutex) else drive)
        return session

    def __enter__(self) -> Self:
        self._refuse_if_ended()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _stack_level() -> int:
    """Return the `stacklevel` of the code that called Tenure, for a warning."""
    package = f"{__name__.partition('.')[0]}."
    level, frame = 0, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(package):
        level, frame = level + 1, frame.f_back
    return level
