"""What a console promises, each as a check of one site. They must pass as it is, and find planted bugs."""

import asyncio
import hmac
import logging
import re
from itertools import pairwise

import pytest
from httpx import Response
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Mount

from tenure import AsyncClient, LeaseLost
from tenure.console import Access, Token
from tenure.console.app import MOST_BODY
from tenure.console.rights import AccessOf, local_only
from tenure.contracts.findings import Finding, Severity
from tests.console.visiting import ACT, HERE, Check, Site, csrf_of

SECRET = "a-secret-of-twenty-characters"  # noqa: S105 - of a test
HOSTILE = "<img src=x onerror=alert(1)>\" onfocus='alert(2)' & \u202eevil"

PATHS = ("/", "/names", "/name?n=orders", "/jobs", "/elections", "/quantities", "/store")
ACTIONS = ("take", "ask", "drain", "quarantine", "pause", "resume", "run")


async def hostile_text_is_text(site: Site) -> None:
    """Show a name, an owner and a value that look like HTML as text, in elements and in attributes."""
    site.held.append(await site.other.election(HOSTILE).campaign(HOSTILE))
    for path in ("/names", f"/names?prefix={HOSTILE.replace('&', '%26')}", "/elections", "/"):
        page = (await site.get(path)).text
        assert "<img" not in page
        assert " onfocus='" not in page
        assert '" onfocus' not in page
        assert "\u202e" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page or path == "/"
    async with site.browser() as browser:
        page = (await browser.get("/name", params={"n": HOSTILE})).text
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert 'value="&lt;img src=x onerror=alert(1)&gt;&quot; onfocus=&#x27;alert(2)&#x27; &amp; ' in page


async def an_action_is_never_a_get(site: Site) -> None:
    """Refuse a GET: a link or an image of another page cannot act."""
    lease = await site.hold("orders")
    for action in ACTIONS:
        reply = await site.get(f"/act/{action}?n=orders&token={lease.token}&reason=x")
        assert reply.status_code == 405
    lease.check()


async def a_forged_form_is_refused(site: Site) -> None:
    """Without the token of the form, without its cookie, from another origin or without one: nothing is done."""
    lease = await site.hold("orders")
    async with site.browser() as browser:
        csrf = csrf_of((await browser.get("/name?n=orders")).text)
        good = {"n": "orders", "token": str(lease.token), "reason": "x", "csrf": csrf}
        for data, headers in (
            ({**good, "csrf": ""}, {"origin": HERE}),
            ({**good, "csrf": csrf[:-1]}, {"origin": HERE}),
            (good, {}),
            (good, {"origin": "null"}),
            (good, {"origin": f"{HERE}.evil.test"}),
            (good, {"origin": "http://evil.test"}),
            (good, {"origin": HERE, "sec-fetch-site": "cross-site"}),
        ):
            reply = await browser.post("/act/take", data=data, headers=headers)
            assert reply.status_code == 403, (data, headers)
    for cookie in ("", "short"):
        async with site.browser(cookies={"tenure_csrf": cookie}) as browser:
            reply = await browser.post("/act/take", data={**good, "csrf": cookie}, headers={"origin": HERE})
            assert reply.status_code == 403, cookie
    lease.check()


async def only_rights_act(site: Site) -> None:
    """Give a visitor who may only read no forms, and refuse what it sends; show nothing to one without access."""
    lease = await site.hold("orders")
    act = {"n": "orders", "token": str(lease.token), "reason": "x", "csrf": "c" * 43}

    def nobody(_request: Request) -> None:
        return None

    accesses: list[tuple[Access | AccessOf, int]] = [(Access("reader"), 200), (nobody, 403)]
    for access, status in accesses:
        site.console(access=access)
        async with site.browser(cookies={"tenure_csrf": "c" * 43}) as browser:
            for path in PATHS:
                page = await browser.get(path)
                assert page.status_code == status
                assert "csrf" not in page.text
                assert status == 200 or "orders" not in page.text
            for action in ACTIONS:
                reply = await browser.post(f"/act/{action}", data=act, headers={"origin": HERE})
                assert reply.status_code == 403
            if status == 403:
                assert (await browser.get("/events")).status_code == 403
    lease.check()


async def a_token_is_needed(site: Site) -> None:
    """Nothing is shown without the whole token, which no answer tells, and which is compared in constant time."""
    site.console(access=Token(SECRET, ACT))
    await site.hold("orders")
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def seen(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return compare(one, other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hmac, "compare_digest", seen)
        for given in ("", SECRET[:-1], SECRET[:1], SECRET + "x", SECRET.upper()):
            async with site.browser() as browser:
                for path in PATHS:
                    reply = await browser.get(path, headers={"authorization": f"Bearer {given}"})
                    assert (reply.status_code, reply.headers.get("location")) == (303, "/login")
                reply = await browser.get("/events", headers={"authorization": f"Bearer {given}"})
                assert reply.status_code == 403
                csrf = csrf_of((await browser.get("/login")).text)
                data = {"token": given, "csrf": csrf}
                assert (await browser.post("/login", data=data, headers={"origin": HERE})).status_code == 403
                assert (await browser.get("/names")).status_code == 303
        assert any(SECRET.encode() in pair for pair in compared)
    async with site.browser() as browser:
        reply = await browser.get("/names", headers={"authorization": f"Bearer {SECRET}"})
        assert "orders" in reply.text
        csrf = csrf_of((await browser.get("/login")).text)
        reply = await browser.post("/login", data={"token": SECRET, "csrf": csrf}, headers={"origin": HERE})
        assert reply.status_code == 303
        assert SECRET not in str(reply.headers)
        assert {"HttpOnly", "SameSite=lax"} <= set(reply.headers["set-cookie"].split("; "))
        assert "orders" in (await browser.get("/names")).text


async def every_answer_has_the_headers(site: Site) -> None:
    """Pages, redirections, refusals, and what fails inside: all forbid scripts, frames and caches, with a new nonce."""

    def broken(request: object) -> Access:
        if "boom" in str(getattr(request, "url", "")):
            raise RuntimeError("secret inside")
        return ACT

    site.console(access=broken)
    nonces: set[str] = set()
    answers = [(path, 200) for path in PATHS]
    answers += [("/nowhere", 404), ("/act/take", 405), ("/name?n=", 400), ("/?boom", 500)]
    for path, status in answers:
        reply = await site.get(path)
        assert reply.status_code == status, path
        policy = reply.headers.get("content-security-policy", "")
        assert policy.startswith("default-src 'none';"), path
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert "secret inside" not in reply.text
        (nonce,) = set(re.findall(r"'nonce-([^']+)'", policy))
        assert set(re.findall(r'nonce="([^"]+)"', reply.text)) == {nonce}
        assert not re.search(r"<[^>]* (style|on\w+)=", reply.text)
        nonces.add(nonce)
    assert len(nonces) == len(answers)


async def many_watchers_are_one_look_a_second(site: Site) -> None:
    """Twenty browsers, with streams and with pages: one look a second. Nobody watches: none."""
    board = site.console()._board

    async def watch() -> None:
        async for _ in board.looks(10.0):
            assert (await browser.get("/names")).status_code == 200

    async with site.browser() as browser:
        await asyncio.gather(*(watch() for _ in range(20)))
    looks = list(site.looks.listed)
    assert len(looks) in range(9, 13)
    assert min(later - one for one, later in pairwise(looks)) >= 0.999
    await asyncio.sleep(60)
    assert site.looks.listed == looks


async def a_watcher_that_leaves_stops_nobody(site: Site) -> None:
    """Go on when the browser goes away whose stream looks: another one looks."""
    site.looks.slow = 0.9
    board = site.console()._board
    seen: list[int] = []

    async def watch() -> None:
        async for serial in board.looks(30.0):
            seen.append(serial)  # noqa: PERF401 - one after another

    watchers = [asyncio.create_task(watch()) for _ in range(3)]
    for watcher in watchers[:2]:
        await asyncio.sleep(2.5)
        watcher.cancel()
    await asyncio.sleep(2.5)
    before = len(seen)
    await asyncio.sleep(2.5)
    assert len(seen) > before
    board.close()
    await asyncio.wait_for(watchers[2], 2.0)
    assert all(watcher.done() for watcher in watchers)


async def a_store_that_is_down_is_shown(site: Site) -> None:
    """With why, as text, with the age of the last look, and with what that has seen."""
    await site.hold("orders", ttl=3600)
    assert "orders" in (await site.get("/names")).text
    site.looks.down = True
    await asyncio.sleep(20)
    assert re.search(r"seen 2\d\.\d s ago", (await site.get("/names")).text), "at once, with the age"
    await asyncio.sleep(2)
    page = (await site.get("/names")).text
    assert "The store does not answer" in page
    assert "&lt;b&gt;10.0.0.1" in page
    assert re.search(r"seen 2\d\.\d s ago", page)
    assert "orders" in page
    assert 'class="trouble"' in (await site.get("/")).text
    site.looks.down = False
    await asyncio.sleep(2)
    assert "The store does not answer" not in (await site.get("/")).text


async def the_first_names_do_not_wait_for_the_last(site: Site) -> None:
    """Show the first names of many at once, and say that not all have been seen yet."""
    for at in range(320):
        await site.hold(f"bulk:{at:03}", ttl=600)
    site.looks.slow_names = 0.1
    began = asyncio.get_running_loop().time()
    page, first = await asyncio.gather(site.get("/names"), site.get("/"))
    assert asyncio.get_running_loop().time() - began < 0.5
    assert "bulk:000" in page.text
    assert "bulk:319" not in page.text
    for each in (page.text, first.text):
        assert "The first look at the store has not ended yet" in each
    assert "Nothing is wrong" not in first.text
    assert re.search(r"at least \d\d names in use", first.text)
    await asyncio.sleep(3)
    assert "320 names in use" in (await site.get("/")).text


async def a_store_that_was_never_up_is_shown(site: Site) -> None:
    """Say so on the first page, within seconds."""
    site.looks.down = True
    page = await site.get("/")
    assert "first look at the store has not ended yet" in page.text or "It was not seen before" in page.text
    assert "Nothing is wrong" not in page.text
    await asyncio.sleep(5)
    page = await site.get("/")
    assert "It was not seen before." in page.text
    assert "Nothing is wrong" not in page.text


async def a_name_is_taken_by_its_token(site: Site) -> None:
    """Take a name from the holder with the token, never by the token of an earlier holder, and show what was done."""
    first = await site.hold("orders")
    old = first.token
    await first.release()
    lease = await site.hold("orders")
    page = await site.act("/name?n=orders", "/act/take", n="orders", token=str(old), reason="<b>stuck</b>")
    assert "nothing was taken" in page.text
    lease.check()
    page = await site.act("/name?n=orders", "/act/take", n="orders", token=str(lease.token), reason="<b>stuck</b>")
    assert "taken from" in page.text
    assert "&lt;b&gt;stuck&lt;/b&gt;" in page.text
    assert "</bdi>: nobody holds it" in page.text, "the page shows what the store says after the action"
    assert str(page.url).endswith("/name?n=orders")
    lease = await site.hold("pool")
    for token in ("", "-1", "0", "x", "9" * 5000):
        assert "taken from" not in (await site.act("/name?n=pool", "/act/take", n="pool", token=token)).text
    lease.check()


async def every_action_is_in_the_log(site: Site) -> None:
    """Who, what, to what, why and what came of it, also if it failed; a refusal as a warning."""
    lines: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign,assignment]
    log = logging.getLogger("tenure.audit")
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        lease = await site.hold("orders")
        await site.act("/name?n=orders", "/act/ask", n="orders")
        await site.act("/name?n=orders", "/act/take", n="orders", token=str(lease.token))
        await site.act("/name?n=orders", "/act/take", n="orders", token="x")  # noqa: S106 - no secret
        lease = await site.hold("orders")
        page = await site.act("/name?n=orders", "/act/quarantine")
        assert page.status_code == 200
        await site.act("/name?n=orders", "/act/take", n="orders", csrf="forged")
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
    told = [(each.levelno, each.__dict__["audit_action"], each.__dict__.get("audit_who")) for each in lines]
    info, ann = logging.INFO, "ann"
    expected = [(info, action, ann) for action in ("ask to release", "take", "take", "end quarantine")]
    assert told == [*expected, (logging.WARNING, "take", None)]
    assert lines[1].__dict__["audit_reason"] == "it hangs"
    assert "orders, because it hangs: taken from" in lines[1].getMessage()
    assert "failed" in lines[2].__dict__["audit_outcome"]
    assert "failed" in lines[3].__dict__["audit_outcome"], "a store in memory has no quarantine"


async def a_reason_is_needed(site: Site) -> None:
    """Without one, or with an endless one, nothing is done; nor with a form that is too large."""
    lease = await site.hold("orders")
    for reason, status in (("", 400), ("  ", 400), ("x" * 201, 400), ("x" * MOST_BODY, 413)):
        reply = await site.act("/name?n=orders", "/act/take", n="orders", token=str(lease.token), reason=reason)
        assert reply.status_code == status
    lease.check()


async def the_settings_are_examined_once_a_minute(site: Site) -> None:
    """However many browsers show the page of the store, and only while one does. What was found is shown as text."""
    what, why, change = (
        "maxmemory-policy is <b>lru</b>.",
        "It may evict a lock.",
        "CONFIG SET maxmemory-policy noeviction",
    )
    site.looks.findings.append(Finding("redis-eviction", Severity.ERROR, "<i>here</i>", what, why, change))
    for path in PATHS[:-1]:
        await site.get(path)
    assert site.looks.examined == []
    pages = await asyncio.gather(*(site.get("/store") for _ in range(5)))
    for page in pages:
        assert "error: redis-eviction at &lt;i&gt;here&lt;/i&gt;" in page.text
        assert "maxmemory-policy is &lt;b&gt;lru&lt;/b&gt;. It may evict a lock." in page.text
        assert f"<code>{change}</code>" in page.text
        assert "it was refused" in page.text
    for _ in range(50):
        await site.get("/store")
        await asyncio.sleep(1)
    assert len(site.looks.examined) == 1
    site.looks.down = True
    await asyncio.sleep(11)
    page = await site.get("/store")
    assert "were not examined: the store at &lt;b&gt;10.0.0.1&lt;/b&gt; is down" in page.text
    assert "redis-eviction" in page.text, "what was found before"
    assert len(site.looks.examined) == 2
    await asyncio.sleep(600)
    assert len(site.looks.examined) == 2


async def a_host_is_drained(site: Site) -> None:
    """Ask its holders alone, again and again, if that was confirmed; say what they still hold, and take nothing."""
    async with (
        AsyncClient(store=site.source, owner="web-1/7") as mine,
        AsyncClient(store=site.source, owner="web-12") as not_mine,
    ):
        kept, given, other = [
            await one.lock(name).acquire() for one, name in ((mine, "kept"), (mine, "given"), (not_mine, "other"))
        ]
        given.on_revoke(lambda lease: asyncio.ensure_future(lease.release()))
        page = await site.act("/names", "/act/drain", n="web-1")
        assert "failed: it was not confirmed" in page.text
        await asyncio.sleep(10)
        assert not kept.revoking
        assert 'value="web-1"' in page.text, "its host is offered"
        began = asyncio.get_running_loop().time()
        page = await site.act("/names", "/act/drain", n="web-1", sure="on")
        assert str(page.url).endswith("/names")
        assert "asked for 2 names: it still holds 1 after 5 s: kept" in page.text
        assert asyncio.get_running_loop().time() - began < 12
        assert [lease.revoking for lease in (kept, other)] == [True, False]
        kept.check()
        await kept.release()
        page = await site.act("/names", "/act/drain", n="web-1", sure="on")
        assert "it held nothing" in page.text
        site.looks.down = True
        await asyncio.sleep(3)
        page = await site.act("/names", "/act/drain", n="web-12", sure="on")
        assert "failed: the store does not answer" in page.text


async def a_history_is_shown(site: Site) -> None:
    """As a timeline, once a look has read it, with the text of others as text. Without one: how to record it."""
    assert "make the clients with <code>record=True</code>" in (await looked_at(site, "/name?n=orders")).text
    async with AsyncClient(store=site.source, owner=HOSTILE, record=True) as client:
        async with client.lock("orders"):
            pass
        lease = await client.lock("orders").acquire()
        await asyncio.sleep(5)
        page = await looked_at(site, "/name?n=orders")
        assert page.text.count("<rect ") == 2
        assert 'class="held"' in page.text
        assert "still held" in page.text
        assert "&lt;img src=x onerror=alert(1)&gt;" in page.text
        assert not re.search(r"<img|<[^>]* (style|on\w+)=|\u202e", page.text)
        await client.revoke("orders", force=True)
        await asyncio.sleep(5)
        page = await looked_at(site, "/name?n=orders&span=3600")
        assert 'class="sign">\u25bc<' in page.text
        assert "<b>1 hour</b>" in page.text
        await lease.release()


async def looked_at(site: Site, path: str) -> Response:
    """Return a page of which a look has seen all."""
    await site.get(path)
    await asyncio.sleep(2)
    return await site.get(path)


async def links_begin_at_the_mount(site: Site) -> None:
    """Behind any prefix every link, form and redirection stays below it, and cookies are for it alone."""
    lease = await site.hold("orders")
    inner = site.console()
    app = Starlette(routes=[Mount("/admin/locks", app=inner)])
    async with site.browser(app) as browser:
        for path in PATHS:
            page = await browser.get(f"/admin/locks{path}")
            assert page.status_code == 200
            places = re.findall(r'(?:href|action|data-events)="(/[^"]*)"', page.text)
            assert places
            assert all(place.startswith("/admin/locks/") for place in places), places
        page = await browser.get("/admin/locks/name?n=orders")
        assert "Path=/admin/locks;" in page.headers["set-cookie"]
        csrf = csrf_of(page.text)
        data = {"n": "orders", "token": str(lease.token), "reason": "x", "csrf": csrf}
        done = await browser.post("/admin/locks/act/take", data=data, headers={"origin": HERE})
        assert done.headers.get("location") == "/admin/locks/name?n=orders"
    await asyncio.sleep(1)
    with pytest.raises(LeaseLost):
        lease.check()


async def local_only_is_local(site: Site) -> None:
    """Refuse a site that has its own name point to this machine."""
    site.console(access=local_only)
    async with site.browser() as browser:
        for host, status in (("127.0.0.1:8377", 200), ("localhost", 200), ("[::1]:80", 200), ("evil.test", 403)):
            assert (await browser.get("/names", headers={"host": host})).status_code == status, host
        assert (await browser.get("/names", headers={"host": "localhost.evil.test"})).status_code == 403


CHECKS: tuple[Check, ...] = (
    hostile_text_is_text,
    an_action_is_never_a_get,
    a_forged_form_is_refused,
    only_rights_act,
    a_token_is_needed,
    every_answer_has_the_headers,
    many_watchers_are_one_look_a_second,
    a_watcher_that_leaves_stops_nobody,
    a_store_that_is_down_is_shown,
    a_store_that_was_never_up_is_shown,
    the_first_names_do_not_wait_for_the_last,
    a_name_is_taken_by_its_token,
    every_action_is_in_the_log,
    a_reason_is_needed,
    the_settings_are_examined_once_a_minute,
    a_host_is_drained,
    a_history_is_shown,
    links_begin_at_the_mount,
    local_only_is_local,
)
