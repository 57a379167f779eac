"""What a directory in ZooKeeper does, in both forms of the API."""

from pathlib import Path
from typing import Any

import pytest

from tenure.stores.ordered import Entry, Kind, Record
from tenure.stores.zookeeper.channel import path_of
from tenure.stores.zookeeper.nodes import MANY
from tests.zookeeper.conftest import MakeMember
from tests.zookeeper.worlds import Member, contender


def test_who_joins_stands_in_order(member: MakeMember) -> None:
    """Entries are listed as they came, with all that was written of them; positions rise, and `joined` is the last."""
    one, two = member(), member()
    name = "order/of.things~ %"
    first = one.join(name, "a1-1/2", 2, 3)
    second = two.join(name, "a2")
    assert 0 < first.position < second.position
    listing = two.world.run(two.directory.look(name, two.until))
    assert [(each.request_id, each.weight, each.capacity) for each in listing.entries] == [
        ("a1-1/2", 2, 3),
        ("a2", 1, 1),
    ]
    assert first.order < second.order == listing.joined
    assert second.position <= listing.newest
    assert (first.session, second.session) == (one.directory.session(), two.directory.session())
    assert one.directory.session() != two.directory.session() != ""


def test_joining_again_adds_nothing(member: MakeMember) -> None:
    """A request is joined once, however often it is asked for; one that was removed is joined anew."""
    one = member()
    first = one.join("again", "a1")
    assert one.join("again", "a1").position == first.position
    assert one.requests("again") == ["a1"]
    assert one.world.run(one.directory.withdraw_join("again", "a1", first, one.until))
    assert not one.world.run(one.directory.withdraw_join("again", "a1", first, one.until))
    assert one.join("again", "a1").position > first.position
    assert one.requests("again") == ["a1"]


def test_a_name_that_nobody_uses_is_empty(member: MakeMember) -> None:
    """Its listing tells a number that no position exceeds so far."""
    one = member()
    position = one.join("elsewhere", "a1").position
    listing = one.world.run(one.directory.look("nobody", one.until))
    assert listing.entries == []
    assert position <= listing.newest < one.join("nobody", "a2").position


def test_several_names_are_listed_at_once(member: MakeMember) -> None:
    """Each listing is that of its name, also of more names than one round trip lists, and of names without a node."""
    one, two = member(), member()
    names = [f"several-{number}" for number in range(MANY + 2)]
    for name in (names[0], names[-1]):
        one.join(name, "a1")
        two.join(name, "a2")
    listings = one.world.run(one.directory.look_at_all(names, one.until))
    assert [[each.request_id for each in listing.entries] for listing in listings] == [
        ["a1", "a2"],
        *([] for _ in range(MANY)),
        ["a1", "a2"],
    ]
    assert one.world.run(one.directory.look_at_all([], one.until)) == []


def test_a_change_is_all_or_nothing(member: MakeMember) -> None:
    """What is to be removed must be there; then what is kept takes its place, and is there once if asked for again."""
    one, two = member(), member()
    first, second = one.join("change", "a1"), two.join("change", "a2")
    kept = Record(Kind.PLACEHOLDER, "a1", counts_for=60.0, place=first.order, text="kept")
    assert one.world.run(one.directory.change("change", [first], [kept], one.until))
    assert [(each.kind, each.order) for each in two.look("change")] == [
        (Kind.PLACEHOLDER, first.order),
        (Kind.CONTENDER, second.order),
    ]
    assert not one.world.run(one.directory.change("change", [second, first], [kept], one.until))
    assert two.requests("change") == ["a1", "a2"]
    assert one.world.run(one.directory.change("change", [], [kept], one.until))
    assert two.requests("change") == ["a1", "a2"]
    delay = Record(Kind.PLACEHOLDER, "a3", 7, counts_for=60.0)
    assert one.world.run(one.directory.change("change", [], [delay], one.until))
    assert [each.order for each in two.look("change")] == [0, first.order, second.order]


def test_a_change_makes_its_name(member: MakeMember) -> None:
    """A name need not be there before something is written to it."""
    one = member()
    size = Record(Kind.SIZE, "a1", 1, 5, 3)
    assert one.world.run(one.directory.change("made", [], [size], one.until))
    assert [(each.capacity, each.before) for each in one.look("made")] == [(5, 3)]


def test_what_is_light_vanishes_with_its_session(member: MakeMember) -> None:
    """Contenders and LIGHT entries belong to their session, blocks outlive it."""
    one, two = member(), member()
    one.join("vanish", "a1")
    more = [Record(Kind.LIGHT, "a1"), Record(Kind.BLOCK, "a1", counts_for=60.0)]
    assert one.world.run(one.directory.change("vanish", [], more, one.until))
    one.close()
    assert [each.kind for each in two.look("vanish")] == [Kind.BLOCK]


def test_texts_are_read_and_rewritten(member: MakeMember) -> None:
    """Whoever rewrites a text wakes who watches it; of what is gone there are no details."""
    one, two = member(), member()
    first = one.world.run(one.directory.join("texts", contender("a1", text="früher\nund"), one.until))[0]
    second = two.join("texts", "a2")
    assert two.world.run(two.directory.watch("texts", "a2", [first], two.until))
    assert one.world.run(one.directory.rewrite([("texts", first, "später")], one.until)) == [True]
    two.wait(lambda: two.notes.woke == ["a2"])
    details = two.world.run(two.directory.details("texts", [first, second], two.until))
    assert [(each.text, each.position, each.session) for each in details if each] == [
        ("später", first.position, one.directory.session()),
        ("", second.position, two.directory.session()),
    ]
    assert all(0.0 <= each.age < 10.0 for each in details if each)
    one.world.run(one.directory.withdraw_join("texts", "a1", first, one.until))
    assert two.world.run(two.directory.details("texts", [first], two.until)) == [None]
    assert one.world.run(one.directory.rewrite([("texts", first, "zu spät")], one.until)) == [False]


def test_a_watch_wakes_once(member: MakeMember) -> None:
    """A watcher hears of the first that goes, not of what it no longer watches, and at once of what is gone."""
    one, two = member(), member()
    entries = [one.join("watch", f"a{n}") for n in range(4)]
    mine = two.join("watch", "b")
    watch = two.directory.watch
    assert two.world.run(watch("watch", "b", entries[:1], two.until))
    assert two.world.run(watch("watch", "b", entries[1:3], two.until))
    for entry in entries[:3]:
        one.world.run(one.directory.withdraw_join("watch", entry.request_id, entry, one.until))
    two.wait(lambda: two.notes.woke)
    assert not two.world.run(watch("watch", "b", [entries[3], entries[0]], two.until))
    assert two.world.run(watch("watch", "b", entries[3:], two.until))
    assert two.world.run(watch("watch", "b", [], two.until))
    one.world.run(one.directory.stir("watch", [entries[3], mine], one.until))
    assert two.notes.woke == ["b"]


def test_what_is_gone_is_not_watched(member: MakeMember) -> None:
    """No node of this name comes again, so neither the server nor the client would ever forget that watch."""
    one, two = member(), member()
    first = one.join("gone", "a1")
    two.join("gone", "a2")
    one.world.run(one.directory.withdraw_join("gone", "a1", first, one.until))
    assert not two.world.run(two.directory.watch("gone", "a2", [first], two.until))
    client: Any = two.directory._session.link._client
    assert [path for path, watchers in client._data_watchers.items() if watchers and "/gone/" in path] == []


def test_a_change_before_the_watch_is_heard(member: MakeMember) -> None:
    """What changed after it was listed wakes who watches it only now."""
    one, two = member(), member()
    one.join("late", "a1")
    two.join("late", "a2")
    listed = two.look("late")
    one.world.run(one.directory.stir("late", listed, one.until))
    assert two.world.run(two.directory.watch("late", "a2", listed[:1], two.until))
    two.wait(lambda: two.notes.woke == ["a2"])


def test_what_is_kept_ends_by_the_ensembles_time(member: MakeMember) -> None:
    """What remains gets less until it is over, for each session that asks; then it is removed."""
    one, two = member(), member()
    long = Record(Kind.PLACEHOLDER, "a1", counts_for=60.0)
    one.world.run(one.directory.change("long", [], [long], one.until))
    (entry,) = two.look("long")
    for each in (two, one):  # each has its own estimate of the ensemble's time
        earlier, later = (each.world.run(each.directory.remains("long", entry, each.until)) for _ in range(2))
        assert 0.0 < later <= earlier <= 60.0
    kept = Record(Kind.PLACEHOLDER, "a1", counts_for=0.1)
    began = one.world.runtime.now()
    one.world.run(one.directory.change("kept", [], [kept], one.until))
    (entry,) = two.look("kept")
    while two.world.run(two.directory.remains("kept", entry, two.until)) > 0.0:
        two.world.run(two.world.runtime.sleep(0.005))
    assert two.world.runtime.now() - began >= 0.099  # the ensemble counts milliseconds
    assert one.look("kept") == []
    assert one.world.run(one.directory.remains("kept", entry, one.until)) == 0.0


def test_a_block_counts_from_the_first_question(member: MakeMember) -> None:
    """It does not count while nobody asks; then it counts for all alike."""
    one, two = member(), member()
    long = Record(Kind.BLOCK, "a1", counts_for=60.0)
    one.world.run(one.directory.change("long block", [], [long], one.until))
    (entry,) = one.look("long block")
    one.world.run(one.world.runtime.sleep(0.2))
    asked = one.world.runtime.now()
    first = one.world.run(one.directory.remains("long block", entry, one.until))
    took = one.world.runtime.now() - asked
    assert 60.0 - took - 0.1 < first <= 60.0
    then = two.world.run(two.directory.remains("long block", entry, two.until))
    assert then <= first + 0.001  # the ensemble counts milliseconds
    block = Record(Kind.BLOCK, "a1", counts_for=0.1, text="why")
    one.world.run(one.directory.change("block", [], [block], one.until))
    (entry,) = one.look("block")
    (detail,) = two.world.run(two.directory.details("block", [entry], two.until))
    assert detail is not None
    assert detail.text == "why"
    while two.world.run(two.directory.remains("block", entry, two.until)) > 0.0:
        two.world.run(two.world.runtime.sleep(0.005))
    assert one.look("block") == []


def test_a_check_tells_what_is_there(member: MakeMember) -> None:
    """It is a proof, and tells of each entry whether it is there and ours."""
    one, two = member(), member()
    entries = [("check", one.join("check", "a1")), ("check", one.join("check", "a2")), ("c", two.join("c", "a3"))]
    one.world.run(one.directory.withdraw_join("check", "a2", entries[1][1], one.until))
    asked = one.world.runtime.now()
    assert one.world.run(one.directory.check(entries, one.until)) == [True, False, False]
    assert asked <= one.directory.proved_at <= one.world.runtime.now()


def test_the_trust_follows_from_what_the_server_allows(member: MakeMember) -> None:
    """A session that the server cuts short is trusted for less than the server keeps it."""
    one = member(session_timeout="600")  # the servers of tests allow 60
    assert 20.0 < one.directory.trust < 60.0 / 2


def test_names_are_found(member: MakeMember) -> None:
    """Only those that are used are told; the nodes of others do not stay for ever."""
    one, two = member(), member()
    for name in ("list/b", "list/a", "list.c", "other"):
        one.join(name, "a1")
    assert two.world.run(two.directory.names("list", two.until)).names == ["list.c", "list/a", "list/b"]
    one.world.run(one.directory.withdraw_join("list/a", "a1", None, one.until))
    assert two.world.run(two.directory.names("list/", two.until)).names == ["list/b"]
    one.close()
    assert two.world.run(two.directory.names("list", two.until)).names == []


def test_an_unused_name_is_removed_and_made_anew(member: MakeMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client removes the empty node of a name that it has not used for a while; who joins it next makes it anew."""
    monkeypatch.setattr("tenure.stores.zookeeper.nodes.UNUSED", 0.0)
    one = member()
    one.world.run(one.directory.withdraw_join("unused", "a1", one.join("unused", "a1"), one.until))
    assert one.world.run(one.directory.look("unused", one.until)).joined
    one.world.run(one.directory.keep_alive(one.until))
    assert not one.world.run(one.directory.look("unused", one.until)).joined
    kept = one.join("unused", "a2")
    one.world.run(one.directory.keep_alive(one.until))
    assert [entry.position for entry in one.look("unused")] == [kept.position]


def test_messages_come_once_and_in_order(member: MakeMember) -> None:
    """Many senders at once lose nothing; to a session that has ended, messages are lost without an error."""
    one, two, three = member(), member(), member()
    channel = one.directory.session()
    for n in range(20):
        sender = (two, three, one)[n % 3]
        sender.world.run(sender.directory.tell(channel, f"message {n}", sender.until))
    one.wait(lambda: len(one.notes.messages) >= 20)
    assert one.notes.messages == [f"message {n}" for n in range(20)]
    one.close()
    two.world.run(two.directory.tell(channel, "too late", two.until))


def test_an_channel_that_somebody_removed_is_made_again(member: MakeMember) -> None:
    """And so is everything else."""
    one = member()
    session = one.directory.session()
    client = one.directory._session.link._client
    assert client is not None
    client.delete_async(path_of(one.directory._nodes.root, session))
    two = member()
    while not one.notes.messages:
        two.world.run(two.directory.tell(session, "hello", two.until))
        two.world.run(two.world.runtime.sleep(0.005))
    assert set(one.notes.messages) == {"hello"}


def test_closing_leaves_nothing(member: MakeMember) -> None:
    """No descriptor stays open, no entry and no channel; also if it was never opened, and if it is closed twice."""
    two = member()
    before = _descriptors()
    one = member()
    one.join("closing", "a1")
    session = one.directory.session()
    one.close()
    one.close()
    assert _descriptors() == before
    assert two.look("closing") == []
    client = two.directory._session.link._client
    assert client is not None
    result = client.exists_async(path_of(two.directory._nodes.root, session))
    two.wait(result.ready)
    assert result.value is None
    Member(two.world, "zookeeper://127.0.0.1:1").close()


def test_an_channel_that_cannot_be_read_ends_no_session(member: MakeMember) -> None:
    """Whoever wrote what is no message into it: the next one is heard, and what is held stays held."""
    one, two = member(), member()
    client = two.directory._session.link._client
    assert client is not None
    result = client.set_async(path_of(two.directory._nodes.root, one.directory.session()), b"no number\nnor this")
    two.wait(result.ready)
    two.world.run(two.directory.tell(one.directory.session(), "still here", two.until))
    one.wait(lambda: "still here" in one.notes.messages)
    assert one.notes.losses == 0


def test_other_nodes_are_left_alone(member: MakeMember) -> None:
    """What is no entry of ours is not listed."""
    one = member()
    one.join("strange", "a1")
    client = one.directory._session.link._client
    assert client is not None
    result = client.create_async(f"{one.directory._nodes.root}/strange/note")
    one.wait(result.ready)
    assert one.requests("strange") == ["a1"]


def test_an_entry_that_cannot_be_found_is_gone(member: MakeMember) -> None:
    """An entry without a node behaves as one that was removed."""
    one = member()
    ghost = Entry(Kind.CONTENDER, "a9", 9, key="0/c_a9_1_1_0_0000000008")
    assert not one.world.run(one.directory.change("ghost", [ghost], [], one.until))
    assert not one.world.run(one.directory.watch("ghost", "a1", [ghost], one.until))
    assert one.world.run(one.directory.check([("ghost", ghost)], one.until)) == [False]
    one.world.run(one.directory.stir("ghost", [ghost], one.until))


def _descriptors() -> int:
    """Count what is open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_node_of_a_name_that_was_long_held_is_removed(member: MakeMember, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that was in use when its node might have been removed is empty some time after its holder has gone."""
    monkeypatch.setattr("tenure.stores.zookeeper.nodes.UNUSED", 0.0)
    one = member()
    entry = one.join("held", "a1")
    one.world.run(one.directory.keep_alive(one.until))
    one.world.run(one.directory.withdraw_join("held", "a1", entry, one.until))
    one.world.run(one.directory.keep_alive(one.until))
    path = one.directory._nodes.path("held")
    found = one.world.run(
        one.directory._session.link.exchange(one.until, lambda client: [client.exists_async(path)], writes=False)
    )
    assert found.values == [None]
