"""The ttl of a lock that says none: that of its client, of the URL, or 30 s, and no longer than the store grants."""

import pytest

from tenure import AsyncClient, Client, UsageError


@pytest.mark.parametrize(
    ("url", "options", "ttl"),
    [
        ("memory://", {}, 30.0),
        ("memory://?ttl=5", {}, 5.0),
        ("memory://?ttl=5", {"ttl": 7}, 7.0),
        ("redis://host?max_ttl=10", {}, 10.0),
        ("redis://host?max_ttl=100", {}, 30.0),
        ("redis://host/0?ttl=12&max_ttl=100&replicas=1", {}, 12.0),
        ("postgresql://host/db?max_ttl=10", {}, 10.0),
    ],
)
def test_a_lock_that_says_no_ttl_has_that_of_its_client(url: str, options: dict[str, float], ttl: float) -> None:
    """In both forms, for every kind of lock; another ttl may be given."""
    for kind in (Client, AsyncClient):
        client = kind(url, **options)  # type: ignore[arg-type]
        assert client.ttl == ttl
        made = (client.lock("n"), client.semaphore("n", 2), client.rwlock("n").read(), client.election("n"))
        assert {each._options.ttl for each in made} == {ttl}
        assert client.lock("n", ttl=3)._options.ttl == 3


def test_a_lease_has_the_ttl_of_the_url() -> None:
    """As the store says."""
    with Client("memory://with-a-ttl?ttl=9") as client, client.lock("n"):
        assert 8 < client.inspect("n").holders[0].expires_in <= 9


@pytest.mark.parametrize(
    ("url", "options", "error"),
    [
        ("redis://host?max_ttl=10", {"ttl": 11}, "ttl=11 is longer than this store's max_ttl of 10 s"),
        ("redis://host?max_ttl=10&ttl=11", {}, "ttl=11 is longer than this store's max_ttl of 10 s"),
        ("memory://?ttl=soon", {}, r"ttl must be .* as \?ttl=10"),
        ("memory://?ttl=", {}, r"ttl must be .* as \?ttl=10"),
        ("memory://?ttl=nan", {}, "ttl must be"),
        ("memory://", {"ttl": -1}, "ttl must be"),
    ],
)
def test_a_ttl_that_is_none_is_refused(url: str, options: dict[str, float], error: str) -> None:
    """When the client is made."""
    with pytest.raises(UsageError, match=error):
        Client(url, **options)  # type: ignore[arg-type]


def test_a_ttl_is_named() -> None:
    """A number after the name would be a ttl to one and a timeout to another."""
    with Client("memory://") as client, pytest.raises(TypeError, match="positional"):
        client.lock("n", 5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
