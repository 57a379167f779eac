"""The console inside other apps: FastAPI and Django, under a prefix."""

import asyncio
import importlib
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

import tenure
from tenure.console import Access, console
from tests import virtual

HERE = "http://app.test"


async def seen(app: ASGIApp, path: str) -> httpx.Response:
    """Return what a browser gets."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=HERE) as browser:
        return await browser.get(path)


def test_fastapi_mounts_it() -> None:
    """As any app; the routes beside it stay, and a dependency may say who has access."""
    fastapi: Any = importlib.import_module("fastapi")

    async def main() -> None:
        async with tenure.AsyncClient(store=virtual.source()) as client, client.lock("orders"):
            app = fastapi.FastAPI()
            app.get("/hello")(lambda: {"hello": "world"})
            app.mount("/locks", console(client, access=lambda request: Access(request.headers.get("x-user", "?"))))
            page = await seen(app, "/locks/names")
            assert 'href="/locks/name?n=orders"' in page.text
            assert page.headers["content-security-policy"]
            assert "content-security-policy" not in (await seen(app, "/nowhere")).headers

    virtual.run(main)


def test_django_stands_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An app of Starlette sends one prefix to the console, and the rest to Django."""
    settings: Any = importlib.import_module("django.conf").settings
    get_asgi_application: Any = importlib.import_module("django.core.asgi").get_asgi_application
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["app.test"], SECRET_KEY="x", DEBUG=False)  # noqa: S106
    monkeypatch.setattr(settings, "ROOT_URLCONF", __name__, raising=False)
    monkeypatch.setattr(settings, "ALLOWED_HOSTS", ["app.test"], raising=False)
    django = get_asgi_application()

    async def main() -> None:
        async with tenure.AsyncClient("memory://") as client, client.lock("orders"):
            inner = console(client, access=Access())
            app = Starlette(routes=[Mount("/admin/locks", app=inner), Mount("/", app=django)])
            assert 'href="/admin/locks/name?n=orders"' in (await seen(app, "/admin/locks/names")).text
            assert (await seen(app, "/other")).status_code == 404

    asyncio.run(main())


urlpatterns: list[object] = []
"""The pages of the Django of these tests: none."""


def test_the_end_of_the_lifespan_ends_all_streams() -> None:
    """No look goes on after the app has ended, whoever still watches."""

    async def main() -> None:
        async with tenure.AsyncClient(store=virtual.source()) as client:
            app = console(client, access=Access())
            inbox: asyncio.Queue[dict[str, str]] = asyncio.Queue()
            outbox: asyncio.Queue[Any] = asyncio.Queue()
            life = asyncio.create_task(app({"type": "lifespan", "asgi": {}}, inbox.get, outbox.put))
            await inbox.put({"type": "lifespan.startup"})
            assert (await outbox.get())["type"] == "lifespan.startup.complete"
            watching = asyncio.create_task(seen(app, "/events"))
            await asyncio.sleep(2.5)
            assert not watching.done()
            await inbox.put({"type": "lifespan.shutdown"})
            await life
            stream = await asyncio.wait_for(watching, 1.0)
            assert stream.text.count("data: ") in {2, 3}

    virtual.run(main)
