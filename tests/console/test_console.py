"""What the console shows, whom it lets in, what it refuses, and how often it looks at the store."""

import asyncio

import pytest

import tenure
from tenure.console import Access, Token, console
from tenure.errors import UsageError
from tests.console.checks import CHECKS
from tests.console.visiting import Check, Site, visit


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.__name__)
def test_promise(check: Check) -> None:
    """The docstring of each check says which."""
    visit(check)


def test_names_are_in_pages_by_prefix() -> None:
    """A hundred on each page; a page number from outside is a page, whatever it is."""

    async def check(site: Site) -> None:
        for at in range(250):
            await site.hold(f"bulk:{at:03}", ttl=600)
        await site.hold("other", ttl=600)
        page = (await site.get("/names?prefix=bulk:")).text
        assert page.count("<tr>") == 101
        assert "Page 1 of 3, 250 in all." in page
        assert ">other<" not in page
        last = (await site.get("/names?prefix=bulk:&page=3")).text
        assert "bulk:249" in last
        assert "bulk:199" not in last
        for odd in ("0", "-1", "99", "x", "9" * 5000, "%F0%9F%98%80", "²"):
            assert (await site.get(f"/names?page={odd}")).status_code == 200

    visit(check)


def test_trouble_is_long_waits_silent_holders_and_late_jobs() -> None:
    """Each with its name, and nothing else."""

    async def check(site: Site) -> None:
        site.console(long_wait=60.0)
        assert "Nothing is wrong" in (await site.get("/")).text
        await site.hold("slow", ttl=600)
        waiting = asyncio.create_task(site.client.lock("slow").acquire())
        page = (await site.get("/")).text
        assert "Nothing is wrong" in page
        await asyncio.sleep(61)
        assert "a waiter has waited for 1 min" in (await site.get("/")).text
        waiting.cancel()
        lease = await site.hold("silent", ttl=60, max_hold=61)
        await asyncio.sleep(40)
        page = (await site.get("/")).text
        assert "silent" in page
        lease.check()

        @site.other.once("report", window=10)
        async def report() -> None:
            if fails:
                raise ValueError("<disk full>")

        fails = False
        await report()
        assert "overdue" not in (await site.get("/")).text
        await asyncio.sleep(25)
        assert "the job is overdue: a run has been due for" in (await site.get("/")).text
        fails = True
        with pytest.raises(ValueError, match="disk"):
            await report()
        await asyncio.sleep(2)
        assert "the last run of the job failed: ValueError: &lt;disk full&gt;" in (await site.get("/")).text

    visit(check)


def test_jobs_are_paused_resumed_and_run_again() -> None:
    """By their forms; a job by key needs the key."""

    async def check(site: Site) -> None:
        @site.other.once("report", window="hourly")
        async def report() -> None:
            pass

        await report()
        page = await site.act("/jobs", "/act/pause", n="report")
        assert "paused: no run begins" in page.text
        assert ">Resume<" in page.text
        (view,) = await site.other.jobs()
        assert view.paused
        await site.act("/jobs", "/act/resume", n="report")
        await site.act("/jobs", "/act/run", n="report")
        (view,) = await site.other.jobs()
        assert not view.paused
        assert not view.done
        assert "no such job" in (await site.act("/jobs", "/act/pause", n="nothing")).text

    visit(check)


def test_limits_and_stocks_are_read_and_not_made() -> None:
    """Those that the console was given, and those that somebody asks for. A look at one that nobody made makes none."""

    async def check(site: Site) -> None:
        site.console(limits=["api"], stocks=["tickets"])
        page = (await site.get("/quantities")).text
        assert "no such stock" in page
        stock = site.other.stock("tickets")
        await stock.restock(40)
        await stock.take(3)
        assert await stock.reserve(2, 600) is not None
        await site.other.limit("api", 2, 60.0).acquire(2)
        await asyncio.sleep(2)
        page = (await site.get("/quantities")).text
        assert "35 left, 2 reserved" in page
        assert "busy: idle again in 58.0 s" in page
        assert "no such stock" in (await site.get("/quantities?kind=stock&n=other")).text
        await site.other.stock("other", segments=3).restock(1)

    visit(check)


def test_a_name_that_nobody_holds_has_a_page() -> None:
    """It is looked at because somebody asks."""

    async def check(site: Site) -> None:
        assert "nothing</bdi>: nobody holds it" in (await site.get("/name?n=nothing")).text

    visit(check)


def test_the_namespace_of_the_client_is_shown() -> None:
    """And nothing beside it."""

    async def check(site: Site) -> None:
        await site.hold("outside")
        async with (
            tenure.AsyncClient(store=site.source, namespace="shop") as client,
            client.lock("inside"),
            site.browser(console(client, access=Access())) as browser,
        ):
            page = (await browser.get("/names")).text
        assert "n=inside" in page
        assert "outside" not in page

    visit(check)


def test_what_cannot_work_is_refused() -> None:
    """A blocking client, a token that is guessed, and wrong numbers, with what to do."""
    with tenure.Client("memory://") as client, pytest.raises(UsageError, match="AsyncClient"):
        console(client, access=Access())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="16 characters"):
        Token("short")
    assert "a-secret" not in repr(Token("a-secret-of-twenty-characters"))
