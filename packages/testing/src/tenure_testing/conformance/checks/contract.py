"""Checks of the store contract: the replies to single requests, sent without a client, and to repeated ones."""

# ruff: noqa: D401 - a check's docstring is the guarantee, not an order

from tenure.contracts.messages import AcquireRequest, CapacityMismatch, Granted, Queued, Withdrawn
from tenure.outcome import Outcome
from tenure_testing.conformance.check import check
from tenure_testing.conformance.kit import Kit, RawClient, expect


async def _pushed(kit: Kit, raw: RawClient, request: AcquireRequest, what: str) -> int:
    """Wait until a request is granted by a notification; return the token. Without a channel, repeat the request."""

    async def was_notified() -> bool:
        return raw.pushed(request) > 0

    if raw.channel:
        await kit.until(was_notified, f"a notification to {what}")
        return raw.pushed(request)
    reply = await raw.acquire(request)
    expect(isinstance(reply, Granted), f"{what} is granted")
    return reply.token if isinstance(reply, Granted) else 0


@check(exercises="store")
async def repeated_request_holds_once(kit: Kit) -> None:
    """A repeated acquire request gets the same grant: the same token, and one holder."""
    raw = await kit.raw()
    request = raw.request("name")
    token = await raw.acquire_free(request)
    again = await raw.acquire(request)
    expect(isinstance(again, Granted), f"the same request is granted again, not {again}")
    expect(isinstance(again, Granted) and again.token == token, "the request is granted with the same token")
    expect(kit.is_held(await raw.inspect("name"), token), "the request holds the name once")


@check(exercises="store", queue=True)
async def repeated_request_keeps_its_place(kit: Kit) -> None:
    """A repeated acquire request keeps its place in the queue, and has only one place."""
    raw = await kit.raw()
    holder, first, second = raw.request("name"), raw.request("name"), raw.request("name")
    token = await raw.acquire_free(holder)
    for request, place in ((first, 0), (second, 1), (first, 0), (second, 1)):
        reply = await raw.acquire(request)
        expect(isinstance(reply, Queued), f"a request for a held name is queued, not {reply}")
        if isinstance(reply, Queued):
            expect(reply.place == place, f"the place of the request is {place}, not {reply.place}")
            expect(reply.counter >= token, "the reply contains the last token")
            expect(reply.retry_in > 0, "the reply contains the retry time")
    expect(len((await raw.inspect("name")).waiters) == 2, "each request waits once")


@check(exercises="store", queue=True)
async def release_grants_the_first_waiter(kit: Kit) -> None:
    """A release grants the first waiter in the same step, with a notification that contains the token."""
    raw = await kit.raw()
    holder, first, second = raw.request("name"), raw.request("name"), raw.request("name")
    token = await raw.acquire_free(holder)
    for request in (first, second):
        await raw.acquire(request)
    expect(await raw.release(holder, token) is Outcome.RELEASED, "a held name is released")
    view = await raw.inspect("name")
    expect(len(view.holders) == 1, "the name has a holder again")
    pushed = await _pushed(kit, raw, first, "the first waiter")
    expect(pushed == view.holders[0].token > token, "the notification contains the new, larger token")
    expect(raw.pushed(second) == 0, "the second waiter still waits")
    expect(await raw.renew(first, pushed, 20.0) is None, "the grant is renewed")


@check(exercises="store", queue=True)
async def unconfirmed_grant_expires(kit: Kit) -> None:
    """A provisional grant that its waiter never confirms expires after its ttl, and the next waiter is granted."""
    raw = await kit.raw()
    holder, silent, next_one = raw.request("name"), raw.request("name", ttl=0.2), raw.request("name")
    token = await raw.acquire_free(holder)
    for request in (silent, next_one):
        await raw.acquire(request)
    await raw.release(holder, token)
    unconfirmed = await _last_token(raw)

    async def granted() -> bool:
        return isinstance(await raw.acquire(next_one), Granted)

    await kit.until(granted, "the next waiter granted")
    last = await _last_token(raw)
    expect(last > unconfirmed > token, "each grant has a larger token")
    expect(await raw.renew(silent, unconfirmed, 20.0) is Outcome.TAKEN_OVER, "the unconfirmed grant has ended")


async def _last_token(raw: RawClient) -> int:
    return (await raw.inspect("name")).last_token


@check(exercises="store", queue=True)
async def withdrawal_hands_off_a_crossing_grant(kit: Kit) -> None:
    """A waiter that withdraws its request while the name is granted to it hands the grant off to the next waiter."""
    raw = await kit.raw()
    holder, first, second = raw.request("name"), raw.request("name"), raw.request("name")
    token = await raw.acquire_free(holder)
    for request in (first, second):
        await raw.acquire(request)
    await raw.release(holder, token)
    crossed = await _pushed(kit, raw, first, "the first waiter")
    await raw.withdraw(first)
    handed_off = await _pushed(kit, raw, second, "the second waiter")
    expect(handed_off > crossed, "the grant after the hand-off has a larger token")
    view = await raw.inspect("name")
    expect([each.token for each in view.holders] == [handed_off], "the second waiter holds the name")


@check(exercises="store", queue=True)
async def withdrawal_gives_up_the_place(kit: Kit) -> None:
    """A waiter that withdraws its request is granted nothing later, and learns for which holders it waited."""
    raw = await kit.raw()
    holder, first = raw.request("name"), raw.request("name")
    token = await raw.acquire_free(holder)
    await raw.acquire(first)
    reply = await raw.withdraw(first)
    expect(reply.holders == ("raw",), "the reply names the holders that it waited for")
    expect(not (await raw.inspect("name")).waiters, "nobody waits")
    await raw.release(holder, token)
    expect(not (await raw.inspect("name")).holders, "nobody is granted the name")
    await raw.withdraw(first)
    expect(not (await raw.inspect("name")).holders, "a repeated withdrawal changes nothing")


@check(exercises="store")
async def withdrawn_request_is_refused(kit: Kit) -> None:
    """A request that was withdrawn before it arrived is refused when it arrives."""
    raw = await kit.raw()
    withdrawn, released, free = raw.request("name"), raw.request("name"), raw.request("name")
    await raw.withdraw(withdrawn, unsure=True)
    expect(isinstance(await raw.acquire(withdrawn), Withdrawn), "a request that was withdrawn first is refused")
    token = await raw.acquire_free(released)
    await raw.release(released, token, unsure=True)
    expect(isinstance(await raw.acquire(released), Withdrawn), "a request whose lease was released is refused")
    expect(not (await raw.inspect("name")).holders, "nobody holds the name")
    expect(await raw.acquire_free(free) > token, "another request is granted")


@check(exercises="store")
async def repeated_release_gets_the_same_reply(kit: Kit) -> None:
    """A repeated release returns RELEASED again; the release or renewal of an unknown old lease returns TAKEN_OVER."""
    raw = await kit.raw()
    request, other = raw.request("name"), raw.request("name")
    token = await raw.acquire_free(request)
    for _ in range(2):
        expect(await raw.release(request, token) is Outcome.RELEASED, "a repeated release is no error")
    newer = await raw.acquire_free(other)
    expect(await raw.renew(request, token, 20.0) is Outcome.TAKEN_OVER, "a lease that another followed is taken over")
    expect(await raw.release(raw.request("name"), token) is Outcome.TAKEN_OVER, "an unknown old lease is taken over")
    expect(kit.is_held(await raw.inspect("name"), newer), "the holder keeps the name")


@check(exercises="store")
async def renewal_never_shortens(kit: Kit) -> None:
    """A renewal never shortens a lease, and renews only with the token and request of the lease."""
    raw = await kit.raw()
    request = raw.request("name", ttl=20.0)
    token = await raw.acquire_free(request)
    expect(await raw.renew(request, token, 0.5) is None, "a held lease is renewed")
    (holder,) = (await raw.inspect("name")).holders
    expect(holder.expires_in > 10 or not kit.shows_leases, "a shorter renewal shortens nothing")
    expect(await raw.renew(request, token - 1, 20.0) is not None, "an older token renews nothing")
    expect(await raw.renew(raw.request("name"), token, 20.0) is not None, "another request renews nothing")


@check(exercises="store", weights=True)
async def capacities_must_agree(kit: Kit) -> None:
    """A request with another capacity than the one in use is refused until the name is free."""
    raw = await kit.raw()
    three, one = raw.request("name", capacity=3), raw.request("name", capacity=1)
    token = await raw.acquire_free(three)
    reply = await raw.acquire(one)
    expect(isinstance(reply, CapacityMismatch), f"another capacity is refused, not {reply}")
    expect(isinstance(reply, CapacityMismatch) and reply.capacity == 3, "the reply contains the capacity in use")
    await raw.release(three, token)
    expect(await raw.acquire_free(one) > token, "a free name takes a new capacity")


@check(exercises="store", weights=True)
async def weights_fill_the_capacity(kit: Kit) -> None:
    """The weights of the holders fill the capacity and never exceed it; a release makes room for the next waiter."""
    raw = await kit.raw()
    singles = [raw.request("name", capacity=3) for _ in range(3)]
    tokens = [await raw.acquire_free(request) for request in singles]
    expect(tokens == sorted(set(tokens)), "each holder has a token of its own")
    double = raw.request("name", capacity=3, weight=2)
    expect(not isinstance(await raw.acquire(double), Granted), "a full name is not granted")
    await raw.release(singles[0], tokens[0])
    expect(not isinstance(await raw.acquire(double), Granted), "a weight of 2 does not fit into 1")
    await raw.release(singles[1], tokens[1])
    expect(isinstance(await raw.acquire(double), Granted), "a weight of 2 fits into 2")
    view = await raw.inspect("name")
    expect(sum(each.weight for each in view.holders) == view.capacity == 3, "the name is full")


@check(queue=True, weights=True)
async def waiting_writer_precedes_later_readers(kit: Kit) -> None:
    """Readers share; a writer waits for all of them; a reader that arrives after a waiting writer waits for it."""
    raw = await kit.raw()
    every = 1_000
    early, late = ([raw.request("name", capacity=every) for _ in range(2)] for _ in range(2))
    writer = raw.request("name", capacity=every, weight=every)
    tokens = [await raw.acquire_free(request) for request in early]
    for request in (writer, *late):
        expect(isinstance(await raw.acquire(request), Queued), "a writer waits, and so do readers behind it")
    await raw.release(early[0], tokens[0])
    expect(isinstance(await raw.acquire(writer), Queued), "one reader keeps the writer out")
    await raw.release(early[1], tokens[1])
    written = await _pushed(kit, raw, writer, "the writer")
    for request in late:
        expect(isinstance(await raw.acquire(request), Queued), "the writer keeps readers out")
    await raw.release(writer, written)
    for request in late:
        expect(await _pushed(kit, raw, request, "a late reader") > written, "both late readers are granted")
    expect(len((await raw.inspect("name")).holders) == len(late), "readers share")
