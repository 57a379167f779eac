"""What is told of attempts to connect is what became of them, and not what has only just begun."""

import ssl

from tenure.errors import StoreUnavailable
from tenure.stores.zookeeper.sockets import CONNECTED, Attempts, failure_of

HOSTS = [("a", 1), ("b", 2)]


def attempts() -> Attempts:
    """Return the attempts of a client that tries two servers, each round a second later."""
    clock = iter(range(100))
    made = Attempts(HOSTS, lambda: float(next(clock)))
    made.begin()
    return made


def refuse(attempts: Attempts, *hosts: tuple[str, int], error: Exception | None = None) -> None:
    """Have servers refuse."""
    for name, port in hosts:
        attempts.trying(name, ("10.0.0.1", port))
        attempts.note(failure_of(error or ConnectionRefusedError(111, "Connection refused")))


def test_a_refusal_is_that_of_its_round() -> None:
    """The next round, which has just begun, changes nothing in what is told of the last."""
    made = attempts()
    refuse(made, *HOSTS)
    made.end()
    made.begin()
    made.trying("a", ("10.0.0.1", 1))
    told = str(made.refusal(0.0))
    assert "a:1 (connection refused), b:2 (connection refused)" in told
    assert told == str(made.error())
    assert made.refusal(0.5) is None


def test_one_that_may_still_serve_is_no_refusal() -> None:
    """Nor is one that was reached; and what was known before that is not told any more."""
    made = attempts()
    refuse(made, ("a", 1))
    refuse(made, ("b", 2), error=ConnectionResetError())
    made.end()
    assert made.refusal(0.0) is None
    assert "a:1 (connection refused), b:2 (it closed the connection)" in str(made.error())
    made.begin()
    made.trying("b", ("10.0.0.1", 2))
    made.note(CONNECTED)
    made.reached()
    refuse(made, ("a", 1))
    made.end()
    assert made.refusal(0.0) is None
    assert "b:2 (it was not tried yet)" in str(made.error())


def test_certificates_that_are_no_good_everywhere_are_no_passing_trouble() -> None:
    """Asking again mends it only if one of the servers might serve."""
    wrong = ssl.SSLCertVerificationError(1, "wrong")
    wrong.verify_message = "self-signed certificate"
    made = attempts()
    refuse(made, *HOSTS, error=wrong)
    made.end()
    told = made.refusal(0.0)
    assert told is not None
    assert not isinstance(told, StoreUnavailable)
    assert "self-signed" in str(told)
    made.begin()
    refuse(made, ("a", 1))
    refuse(made, ("b", 2), error=wrong)
    made.end()
    assert isinstance(made.refusal(1.0), StoreUnavailable)


def test_a_name_with_several_addresses_is_told_once() -> None:
    """With each reason once; IPv6 addresses in brackets."""
    made = Attempts([("::1", 1)], lambda: 0.0)
    made.begin()
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3"):
        made.trying("::1", (address, 1))
        error = TimeoutError() if address == "10.0.0.3" else ConnectionRefusedError(111, "Connection refused")
        made.note(failure_of(error))
    made.end()
    assert "[::1]:1 (connection refused; timed out)" in str(made.error())
    assert made.refusal(0.0) is None


def test_a_client_is_turned_away_if_no_server_may_serve_it() -> None:
    """A server that closes the connection turns it away. One that is down does not matter, one that may serve does."""
    made = attempts()
    assert not made.turned_away()
    refuse(made, ("a", 1))
    assert not made.turned_away()
    refuse(made, ("b", 2), error=ConnectionResetError())
    assert made.turned_away()
    refuse(made, ("a", 1), error=TimeoutError())
    assert not made.turned_away()
    refuse(made, ("a", 1), error=ConnectionResetError())
    assert made.turned_away()
    made.reached()
    assert not made.turned_away()
