"""Scenes: tests that are written once for both forms of the API, with the kit of the conformance suite."""

from collections.abc import Callable, Coroutine
from typing import Any

from tenure import AsyncClient, Client
from tenure.stores.urls import store_source
from tenure_testing.conformance import run_check
from tenure_testing.conformance.check import API_FORMS, Check
from tenure_testing.conformance.kit import Kit

Scene = Callable[[Kit], Coroutine[Any, Any, None]]


def play(form: str, url: str, scene: Scene) -> None:
    """Run a scene in one form of the API. `kit.client()` makes clients of `url`."""
    run_check(Check(scene.__name__, "as the test says", scene), store_source(url), form)


def client_at(kit: Kit, url: object, **options: Any) -> AsyncClient:  # noqa: ANN401 - options of a client
    """Make a client in the scene's form of the API, of a URL or a client of redis-py, with options of its own."""
    options = {"namespace": kit.space, "owner": "client", **options}
    return kit.adopt((AsyncClient if kit.form == API_FORMS[1] else Client)(url, **options))


__all__ = ["API_FORMS", "Scene", "client_at", "play"]
