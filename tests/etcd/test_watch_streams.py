"""The stream of watches: what its answers mean, in whatever order they come."""

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest

from tenure.contracts.runtime import Runtime
from tenure.errors import OutcomeUnknown, StoreError
from tenure.runtimes.threads import ThreadsRuntime, drive
from tenure.stores.etcd import watch_streams as module
from tenure.stores.etcd.gateway import Admission, Gateway
from tenure.stores.etcd.http import EtcdReply, EtcdRequest, JsonObject
from tenure.stores.etcd.link import EtcdCallbacks, Stream
from tenure.stores.etcd.options import EtcdDeployment
from tenure.stores.etcd.watch_streams import EtcdWatch, EtcdWatches
from tenure.transport.link import ServerAddress
from tests.etcd.scenes import TEST_TIMEOUT, Meanwhile, run_asyncio

if TYPE_CHECKING:
    from tenure.stores.etcd.link import EtcdLink
    from tenure.stores.etcd.watch_streams import WatchStream

DENIED: JsonObject = {"watch_id": "-1", "created": True, "canceled": True, "cancel_reason": "permission denied"}
"""What newer servers answer to who may not watch; they tell no id, and some read nothing more after that."""


class Script:
    """A gateway whose streams answer by a script: what is said to them, and what they say to that."""

    def __init__(self, answers: Callable[[int, JsonObject], list[JsonObject]]) -> None:
        """Answer what is said on the nth stream."""
        self.streams: list[ScriptedStream] = []
        self._answers = answers

    async def stream(self, path: str, callbacks: EtcdCallbacks, until: float) -> Stream:
        """Begin a stream."""
        assert path == "watch"
        assert until
        place = len(self.streams)
        self.streams.append(ScriptedStream(callbacks, lambda said: self._answers(place, said)))
        return self.streams[-1]

    def forget_token(self) -> bool:
        """Have been logged in."""
        return True


class ScriptedStream:
    """One of its streams."""

    def __init__(self, callbacks: EtcdCallbacks, answers: Callable[[JsonObject], list[JsonObject]]) -> None:
        """Answer soon what is said."""
        self.callbacks = callbacks
        self.closed = False
        self.said: list[JsonObject] = []
        self._answers = answers

    def say(self, body: bytes) -> None:
        """Take what is said."""
        self.said.append(json.loads(body))
        for answer in self._answers(self.said[-1]):
            self.tell(answer)

    def tell(self, answer: JsonObject) -> None:
        """Say something, soon."""
        asyncio.get_running_loop().call_soon(self.callbacks.on_said, {"result": answer})

    def close(self) -> None:
        """Note it."""
        self.closed = True


def grant(_: int, said: JsonObject) -> list[JsonObject]:
    """Answer as a server that has nothing against it."""
    return [{"watch_id": said["create_request"]["watch_id"], "created": True}] if "create_request" in said else []


def say_nothing(_: int, said: JsonObject) -> list[JsonObject]:
    """Answer as a server that stands still."""
    assert said
    return []


class Watcher:
    """Who watches on a script."""

    def __init__(self, runtime: Runtime, script: Script) -> None:
        """Hear nothing yet."""
        self.heard: list[str] = []
        self._runtime = runtime
        self._watches = EtcdWatches(runtime, cast("Gateway", script))

    async def watch(self, key: str, seconds: float = TEST_TIMEOUT) -> EtcdWatch:
        """Watch a key."""

        def make() -> EtcdWatch:
            return EtcdWatch(
                self._runtime,
                lambda event: self.heard.append(f"{key} {event}"),
                lambda: self.heard.append(f"{key} ended"),
            )

        return await self._watches.begin(make, (key, ""), 1, self._runtime.now() + seconds)


def test_a_watch_that_ends_as_soon_as_it_began_has_told_that() -> None:
    """As one from a revision that was compacted does: whoever began it is woken, and nothing is raised."""

    def answers(place: int, said: JsonObject) -> list[JsonObject]:
        return [*grant(place, said), {"watch_id": "1", "canceled": True, "compact_revision": "9"}]

    async def scene(runtime: Runtime) -> None:
        watcher = Watcher(runtime, Script(answers))
        await watcher.watch("a")
        assert watcher.heard == ["a ended"]

    run_asyncio(scene)


def test_a_refusal_concerns_the_one_that_was_refused() -> None:
    """Though it tells no id. The others go on where they are, and who comes later is on another stream."""

    def answers(place: int, said: JsonObject) -> list[JsonObject]:
        denied = "create_request" in said and said["create_request"]["key"] == "ZGVuaWVk"
        return [DENIED] if denied else grant(place, said)

    async def scene(runtime: Runtime) -> None:
        script = Script(answers)
        watcher = Watcher(runtime, script)
        first = await watcher.watch("a")
        with pytest.raises(StoreError, match="grant its role READWRITE"):
            await watcher.watch("denied")
        await watcher.watch("b")
        denied_at_once, denied_again, third = script.streams
        assert [denied_at_once.closed, denied_again.closed, third.closed] == [False, True, False]
        denied_at_once.tell({"watch_id": "1", "events": [1]})
        third.tell({"watch_id": "1", "events": [2]})
        await asyncio.sleep(0)
        assert watcher.heard == ["a 1", "b 2"]
        first.close()
        assert denied_at_once.closed

    run_asyncio(scene)


def test_what_comes_late_is_for_nobody_else() -> None:
    """A watch that was ended hears nothing, also if it was ended before it began; ids are not used again."""

    async def scene(runtime: Runtime) -> None:
        script = Script(say_nothing)
        watcher = Watcher(runtime, script)
        with pytest.raises(OutcomeUnknown, match="timed out"):
            await watcher.watch("a", 0.01)
        [stream] = script.streams
        beginning = asyncio.create_task(watcher.watch("b"))
        await asyncio.sleep(0)
        stream.tell({"watch_id": "1", "created": True})
        stream.tell({"watch_id": "1", "events": [1]})
        stream.tell({"watch_id": "1", "canceled": True})
        await asyncio.sleep(0)
        assert not beginning.done()
        stream.tell({"watch_id": "2", "created": True, "events": [2]})
        (await beginning).close()
        stream.tell({"watch_id": "2", "events": [3]})
        await asyncio.sleep(0)
        assert watcher.heard == ["b 2"]
        assert [list(said) for said in stream.said] == [["create_request"], ["cancel_request"]] * 2

    run_asyncio(scene)


def deaf_after_one() -> Script:
    """Answer on the first stream the first question alone, and on all others every one."""
    script = Script(lambda place, said: grant(place, said) if place or len(script.streams[0].said) == 1 else [])
    return script


def test_a_server_that_begins_no_watch_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever watches there is told, and the next one begins another stream. Impatience alone gives up nobody."""

    async def scene(runtime: Runtime) -> None:
        script = deaf_after_one()
        watcher = Watcher(runtime, script)
        monkeypatch.setattr(module, "DEAF", 3600.0)
        await watcher.watch("a")
        with pytest.raises(OutcomeUnknown):
            await watcher.watch("impatient", 0.01)
        assert watcher.heard == []
        monkeypatch.setattr(module, "DEAF", 0.01)
        with pytest.raises(OutcomeUnknown):
            await watcher.watch("b", 0.02)
        assert watcher.heard == ["a ended"]
        await watcher.watch("b")
        assert [stream.closed for stream in script.streams] == [True, False]

    run_asyncio(scene)


def test_a_server_that_stands_still_is_given_up_by_the_impatient_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is for how long it has left questions unanswered, and not for how long each of them waits."""

    async def scene(runtime: Runtime) -> None:
        watcher = Watcher(runtime, deaf_after_one())
        monkeypatch.setattr(module, "DEAF", 3600.0)
        await watcher.watch("a")
        with pytest.raises(OutcomeUnknown):
            await watcher.watch("impatient", 0.05)
        assert watcher.heard == []
        monkeypatch.setattr(module, "DEAF", 0.05)
        with pytest.raises(OutcomeUnknown):
            await watcher.watch("impatient", 0.001)
        assert watcher.heard == ["a ended"]
        await watcher.watch("b")

    run_asyncio(scene)


def test_a_watch_that_was_lost_does_not_begin() -> None:
    """Also if a thread tells its loss just before another tells its beginning: its end would never be told."""

    class Losing:
        def begin(self, watch: EtcdWatch, *_: object) -> Callable[[], None]:
            watch.lose("the connection was lost")
            watch.hear({"created": True})
            return lambda: None

    heard: list[str] = []
    runtime = ThreadsRuntime()
    watch = EtcdWatch(runtime, lambda event: heard.append(str(event)), lambda: heard.append("ended"))
    with pytest.raises(OutcomeUnknown, match="the connection was lost"):
        drive(watch.open(cast("WatchStream", Losing()), ("a", ""), 1, runtime.now() + TEST_TIMEOUT))
    assert heard == []


NEW, OLD = "new", "old"
"""Tokens."""


class Guarded:
    """A link to a server that has forgotten a token."""

    def __init__(self) -> None:
        """Let nobody in yet."""
        self.tokens: list[str] = []

    async def exchange(self, *_: object) -> EtcdReply:
        """Let one log in, who is not told at once."""
        await asyncio.sleep(0)
        return EtcdReply(200, {"token": NEW})

    async def stream(
        self, _address: ServerAddress, request: EtcdRequest, callbacks: EtcdCallbacks, _until: float
    ) -> Stream:
        """Deny all who come with another token."""
        self.tokens.append(request.token)
        return ScriptedStream(callbacks, lambda said: grant(0, said) if request.token == NEW else [DENIED])


def test_all_who_are_denied_a_watch_for_an_old_token_try_again() -> None:
    """Also those who hear it when another has forgotten the token already, and nobody has logged in anew yet."""

    async def scene(runtime: Runtime) -> None:
        link = Guarded()
        gateway = Gateway(runtime, EtcdDeployment([ServerAddress("server", 2379)], user="app"), cast("EtcdLink", link))
        gateway._token = OLD
        watches = EtcdWatches(runtime, gateway)
        until = runtime.now() + TEST_TIMEOUT
        make = partial(EtcdWatch, runtime, print, print)
        begun = await asyncio.gather(*(watches.begin(make, (key, ""), 1, until) for key in "abc"))
        assert not any(watch.over for watch in begun)
        assert link.tokens == [OLD, NEW]

    run_asyncio(scene)


def test_one_stream_is_begun_however_many_want_one() -> None:
    """Also if another thread begins it between a look and the decision to do so."""
    runtime = ThreadsRuntime()
    script = Script(say_nothing)
    watches = EtcdWatches(runtime, cast("Gateway", script))
    until = runtime.now() + TEST_TIMEOUT
    others: list[object] = []
    watches._opening._mutex = Meanwhile(lambda: others.append(drive(watches._open(until))))
    assert [drive(watches._open(until))] == others
    assert len(script.streams) == 1


def test_turns_are_given_in_order_and_never_lost() -> None:
    """The urgent before the others; who gives up takes none, also when one was just given to it."""

    async def scene(runtime: Runtime) -> None:
        turns = Admission(runtime, 1)
        until = runtime.now() + TEST_TIMEOUT
        assert await turns.take(until)
        assert not await turns.take(runtime.now() + 0.01)
        order: list[str] = []

        async def take(name: str, *, first: bool = False) -> None:
            assert await turns.take(until, first=first)
            order.append(name)

        taking = [asyncio.create_task(take(name, first=name == "urgent")) for name in ("a", "b", "c", "urgent")]
        await asyncio.sleep(0)
        turns.give_back()
        taking[0].cancel()
        await taking[3]
        turns.give_back()
        taking[1].cancel()  # which has a turn by now, and does not know it
        await taking[2]
        assert order == ["urgent", "c"]
        turns.give_back()
        assert await turns.take(until)

    run_asyncio(scene)
