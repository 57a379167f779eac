"""What is lost on the way leaves nothing behind that nobody knows of, and no session is mistaken for another."""

import threading
from pathlib import Path

import pytest

from tenure.errors import OutcomeUnknown, StoreUnavailable
from tenure.stores.ordered import Entry, Kind, Record
from tests.faults.metronome import Metronome
from tests.hazards.helpers import Script
from tests.servers import ZooKeeperEnsemble, ZooKeeperServer
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import contender, end_session, proxied


def test_a_lost_reply_to_a_join_adds_nothing_twice(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """Whoever joins again finds its own entry, which was created although nobody told."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        session = one.directory.session()
        one.join("lost", "warm")
        proxy.swallow(containing=b"c_a1_")
        with pytest.raises(OutcomeUnknown):
            one.join("lost", "a1")
        entry = one.join("lost", "a1")
        assert proxy.counts.swallowed == 1
        assert one.requests("lost") == ["warm", "a1"]
        assert entry.session == session == one.directory.session()
        (detail,) = one.world.run(one.directory.details("lost", [entry], one.until))
        assert detail is not None
        assert detail.position == entry.position
        assert one.notes.gaps == 1
        assert one.notes.losses == 0
        one.close()


def test_a_lost_join_is_joined_anew(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """If the request never arrived, joining again creates the entry."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        one.join("never", "warm")
        proxy.lose(containing=b"c_a1_")
        with pytest.raises(OutcomeUnknown):
            one.join("never", "a1")
        one.join("never", "a1")
        assert one.requests("never") == ["warm", "a1"]
        one.close()


@pytest.mark.parametrize("arrives", [True, False])
def test_an_unanswered_join_is_withdrawn(member: MakeMember, zookeeper_server: ZooKeeperServer, arrives: bool) -> None:
    """Nothing of it stays, whether or not it had been carried out."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        one.join("unanswered", "warm")
        (proxy.swallow if arrives else proxy.lose)(containing=b"c_a1_")
        with pytest.raises(OutcomeUnknown):
            one.join("unanswered", "a1")
        assert one.world.run(one.directory.withdraw_join("unanswered", "a1", None, one.until)) is arrives
        assert one.requests("unanswered") == ["warm"]
        one.close()


def test_a_join_that_is_stuck_is_withdrawn(
    member: MakeMember, zookeeper_server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A join that timed out, and is carried out later, is found by whoever withdraws it."""
    monkeypatch.setattr("tenure.stores.zookeeper.link.LONGEST_SILENCE", 60.0)  # or the connection might be given up
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url, session_timeout="60")
        one.join("stuck", "warm")
        proxy.blackhole()
        with pytest.raises(OutcomeUnknown):
            one.world.run(one.directory.join("stuck", contender("a1"), one.soon(0.3)))
        proxy.heal()
        assert one.world.run(one.directory.withdraw_join("stuck", "a1", None, one.until))
        assert one.requests("stuck") == ["warm"]
        one.close()


def test_a_lost_reply_to_a_change(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """Asked again, it says that the entry is not there any more; what it added is there once."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        entry = one.join("changed", "a1")
        kept = Record(Kind.PLACEHOLDER, "a1", counts_for=60.0, place=entry.order)
        proxy.swallow(containing=b"k_a1_")
        with pytest.raises(OutcomeUnknown):
            one.world.run(one.directory.change("changed", [entry], [kept], one.until))
        assert not one.world.run(one.directory.change("changed", [entry], [kept], one.until))
        assert [each.kind for each in one.look("changed")] == [Kind.PLACEHOLDER]
        one.close()


def test_a_cut_is_told_as_a_gap(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """Within the session all stays, but for the watches; who waits is told."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        entry = one.join("cut", "a1")
        for cuts in range(1, 4):
            proxy.cut()
            one.await_gaps(cuts)
            assert one.world.run(one.directory.check([("cut", entry)], one.until)) == [True]
        assert one.notes.losses == 0
        one.close()


def test_messages_survive_cuts(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """While the receiver's replies are lost again and again, each message is delivered once, in order."""
    with proxied(zookeeper_server) as (proxy, url):
        one, two = member(url), member()
        channel = one.directory.session()
        for n in range(30):
            if n % 3 == 0:
                proxy.swallow(containing=f"~channels/{channel}".encode())
            two.world.run(two.directory.tell(channel, f"message {n}", two.until))
        proxy.heal()
        one.wait(lambda: len(one.notes.messages) >= 30)
        assert one.notes.messages == [f"message {n}" for n in range(30)]
        assert one.notes.losses == 0
        one.close()


@pytest.mark.parametrize("arrives", [True, False])
def test_a_message_whose_taking_was_not_answered(
    member: MakeMember, zookeeper_server: ZooKeeperServer, arrives: bool
) -> None:
    """It is delivered, once, whether or not it had been taken out; and so are those that come after it."""
    with proxied(zookeeper_server) as (proxy, url):
        one, two = member(url), member()
        channel = one.directory.session()
        two.world.run(two.directory.tell(channel, "first", two.until))
        one.wait(lambda: one.notes.messages == ["first"])
        taking = f"~channels/{channel}".encode() + b"\0\0\0\x012"  # what is written is: emptied twice
        (proxy.swallow if arrives else proxy.lose)(containing=taking)
        two.world.run(two.directory.tell(channel, "second", two.until))
        one.await_gaps(1)
        two.world.run(two.directory.tell(channel, "third", two.until))
        one.wait(lambda: len(one.notes.messages) >= 3)
        assert one.notes.messages == ["first", "second", "third"]
        assert proxy.counts.swallowed + proxy.counts.lost == 1
        one.close()


def test_an_ended_session_is_told(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """What it had is gone, who had it is told, and the next join begins another session."""
    one, two = member(), member()
    entry = one.join("ended", "a1")
    end_session(zookeeper_server, one)
    one.await_losses(1)
    assert two.look("ended") == []
    again = one.join("ended", "a1")
    assert again.session == one.directory.session() != entry.session
    assert again.position > entry.position
    assert one.world.run(one.directory.check([("ended", entry), ("ended", again)], one.until)) == [False, True]
    assert one.requests("ended") == ["a1"]
    two.world.run(two.directory.tell(one.directory.session(), "hello", two.until))
    one.wait(lambda: one.notes.messages == ["hello"])


def test_no_session_is_mistaken_for_another(member: MakeMember, zookeeper_server: ZooKeeperServer) -> None:
    """Whatever the moment at which a session ends, a join answers with an entry of the present one, or raises."""
    one = member()
    for attempt in range(5):
        request_id = f"a{attempt}"
        ending = threading.Thread(target=end_session, args=(zookeeper_server, one))
        ending.start()
        answered: list[Entry] = []
        while ending.is_alive() or not answered:
            try:
                answered.append(one.join("mistaken", request_id))
            except StoreUnavailable:
                continue
        ending.join()
        one.await_losses(attempt + 1)
        entry = one.join("mistaken", request_id)
        assert entry.session == one.directory.session()
        assert [each.request_id for each in one.look("mistaken")] == [request_id]
        one.world.run(one.directory.withdraw_join("mistaken", request_id, entry, one.until))


def test_a_silent_server_bounds_everything(
    member: MakeMember, zookeeper_server: ZooKeeperServer, metronome: Metronome
) -> None:
    """Each operation ends in time, though no server answers; and nothing is sent behind the asker's back."""
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        entry = one.join("silent", "a1")
        proved = one.directory.proved_at
        proxy.blackhole()
        began = one.world.runtime.now()
        directory = one.directory
        for work in (
            directory.look("silent", one.soon(0.1)),
            directory.check([("silent", entry)], one.soon(0.1)),
            directory.change("silent", [entry], [], one.soon(0.1)),
            directory.watch("silent", "a1", [entry], one.soon(0.1)),
            directory.remains("silent", entry, one.soon(0.1)),
            directory.names("", one.soon(0.1)),
            directory.tell("1", "hello", one.soon(0.1)),
        ):
            with pytest.raises(StoreUnavailable):
                one.world.run(work)
        assert metronome.elapsed(began) < 5.0
        assert one.directory.proved_at == proved
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            one.world.run(directory.join("silent", contender("a2"), one.soon(0.3)))
        proxy.heal()
        one.wait(lambda: one.notes.gaps)
        assert "a2" not in one.requests("silent")
        one.close()


def test_closing_is_bounded(
    member: MakeMember, zookeeper_server: ZooKeeperServer, metronome: Metronome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends though the server does not answer, and no thread stays."""
    monkeypatch.setattr("tenure.stores.zookeeper.link.CLOSING", 0.2)
    with proxied(zookeeper_server) as (proxy, url):
        one = member(url)
        proxy.blackhole()
        began = one.world.runtime.now()
        one.close()
        assert metronome.elapsed(began) < 5.0


def test_a_killed_server_costs_no_session(member: MakeMember, zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    """Whichever server dies, the session goes on at another, with all that it has."""
    one = member(zookeeper_ensemble.url)
    entry = one.join("killed", "a1")
    for kill in (zookeeper_ensemble.kill_follower, zookeeper_ensemble.kill_leader):
        kill()
        while True:
            try:
                assert one.world.run(one.directory.check([("killed", entry)], one.soon(2.0))) == [True]
                break
            except StoreUnavailable:
                continue
        zookeeper_ensemble.mend()
    assert one.notes.losses == 0


def test_a_paused_server_is_left(
    member: MakeMember, zookeeper_ensemble: ZooKeeperEnsemble, metronome: Metronome
) -> None:
    """A server that falls silent is left for another, long before the session would end."""
    one = member(zookeeper_ensemble.url, session_timeout="60")
    entry = one.join("paused", "a1")
    handler = one.directory._session.link._handler
    assert handler is not None
    assert handler.wire is not None
    port = handler.wire.getpeername()[1]
    next(server for server in zookeeper_ensemble.servers if server.port == port).pause()
    began = one.world.runtime.now()
    while True:
        try:
            assert one.world.run(one.directory.check([("paused", entry)], one.soon(1.5))) == [True]
            break
        except StoreUnavailable:
            continue
    assert metronome.elapsed(began) < one.directory.trust / 2
    assert one.notes.losses == 0


def test_a_forked_child_leaves_the_session_alone(tmp_path: Path, zookeeper_server: ZooKeeperServer) -> None:
    """It closes what it inherited, ends without a word, and may have a client of its own; the parent goes on."""
    body = """
import os, sys, tenure
client = tenure.Client(sys.argv[1])
lock = client.lock("forked")
lease = lock.acquire()
pid = os.fork()
if pid == 0:
    with tenure.Client(sys.argv[1]) as own:
        print(own.lock("forked").try_acquire(), flush=True)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
lease.check()
lease.release()
again = client.lock("forked").acquire()
print(again.token > lease.token, flush=True)
again.release()
client.close()
"""
    script = Script(body, zookeeper_server.url + "/fork")
    out, errors = script.end()
    assert (out.split(), errors) == (["None", "7", "True"], "")
