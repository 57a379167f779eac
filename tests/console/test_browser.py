"""The console in a real browser: Chromium, which `make servers` installs."""

import re
import shutil
import signal
import subprocess
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

import tenure
from tests.cli.conftest import TEST_TIMEOUT, Command, first_line

SECRET = "a-secret-of-twenty-characters"  # noqa: S105 - of a test
HOSTILE = "<img src=x onerror=window.caught=1>\"'&"
PATHS = ("", "names", "name?n=orders", "jobs", "elections", "quantities", "store")
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=TEST_TIMEOUT * 1000)


@contextmanager
def chromium() -> Generator[Browser]:
    """Yield Chromium, without a window."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    assert path, "there is no Chromium: run `make servers`"
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for all tests."""
    with chromium() as found:
        yield found


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Yield the command on a fresh lock file."""
    made = Command(f"sqlite://{tmp_path}/locks.db")
    yield made
    made.clean_up()


def hold(command: Command, name: str, owner: str = "web-1") -> subprocess.Popen[str]:
    """Hold a name in another process."""
    process = command.start("lock", name, "--owner", owner)
    first_line(process)
    return process


def record(url: str) -> None:
    """Write a history."""
    with tenure.Client(url, owner=HOSTILE, record=True) as client, client.lock("orders"):
        pass


@pytest.fixture
def url(command: Command, tmp_path: Path) -> Iterator[str]:
    """Yield the address of a console whose visitors may act, of a store with two names that are held, and a history."""
    with ThreadPoolExecutor(1) as pool:  # in the thread of a test runs the event loop of Playwright
        pool.submit(record, command.url).result()
    hold(command, "orders")
    hold(command, HOSTILE, HOSTILE)
    (tmp_path / "token").write_text(SECRET)
    process = command.start("serve", "--port", "0", "--act", "--token-file", str(tmp_path / "token"))
    assert process.stderr is not None
    yield process.stderr.readline().split()[-1]
    process.send_signal(signal.SIGTERM)
    process.wait(TEST_TIMEOUT)


def enter(browser: Browser, url: str, problems: list[str], **options: object) -> Page:
    """Log in; `problems` gets what the browser complains about."""
    page = browser.new_context(**options).new_page()  # type: ignore[arg-type]
    page.set_default_timeout(TEST_TIMEOUT * 1000)
    page.on("console", lambda each: problems.append(each.text) if each.type in {"error", "warning"} else None)
    page.on("pageerror", lambda each: problems.append(str(each)))
    page.goto(f"{url}names")
    page.get_by_label("Token").fill(SECRET)
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", name="Trouble")).to_be_visible()
    return page


def test_hostile_names_are_text(browser: Browser, url: str) -> None:
    """Nothing of them runs, on any page and after changes, and the browser has nothing to complain about."""
    problems: list[str] = []
    page = enter(browser, url, problems)
    for path in PATHS:
        page.goto(url + path)
    page.goto(f"{url}names")
    page.get_by_role("link", name=HOSTILE).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Name {HOSTILE}")
    with page.expect_response(re.compile("name")):  # the page shows itself anew
        pass
    expect(page.locator("tbody td").first).to_have_text(HOSTILE)
    assert page.evaluate("window.caught") is None
    assert problems == []
    page.context.close()


def test_a_page_changes_by_itself(browser: Browser, url: str, command: Command) -> None:
    """A new holder appears without a reload; the link that has the focus keeps it, and an open form stays."""
    problems: list[str] = []
    page = enter(browser, url, problems)
    page.goto(f"{url}names")
    page.get_by_role("link", name="orders").focus()
    hold(command, "later")
    expect(page.get_by_role("link", name="later")).to_be_visible()
    assert page.evaluate("document.activeElement.textContent") == "orders"
    page.goto(f"{url}name?n=orders")
    page.get_by_text("Take the name from web-1").first.click()
    page.get_by_label("Reason").last.fill("not finished")
    expect(page.locator("#live")).to_contain_text("while a form is open")
    assert page.get_by_label("Reason").last.input_value() == "not finished"
    assert problems == []
    page.context.close()


def test_a_name_is_taken_by_keyboard(browser: Browser, url: str, command: Command) -> None:
    """With a reason; its holder loses it, and the page shows who did that and why."""
    problems: list[str] = []
    holder = hold(command, "taken")
    page = enter(browser, url, problems)
    page.goto(f"{url}name?n=taken")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Enter")
    for _ in range(2):
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type("<b>it hangs</b>")
    page.keyboard.press("Enter")
    expect(page.get_by_text("taken: nobody holds it")).to_be_visible()
    expect(page.locator("td", has_text="taken from web-1")).to_be_visible()
    expect(page.locator("td", has_text="<b>it hangs</b>")).to_be_visible()
    assert holder.wait(TEST_TIMEOUT) == 76
    assert problems == []
    page.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_fit_a_phone_in_both_schemes(browser: Browser, url: str, command: Command, scheme: str) -> None:
    """Nothing is wider than 360 pixels, and the text is readable on the background of the scheme."""
    problems: list[str] = []
    hold(command, "long/" + "x" * 400, "owner" * 40)
    page = enter(browser, url, problems, viewport=PHONE, color_scheme=scheme)
    for path in PATHS:
        page.goto(url + path)
        if path.startswith("name?"):
            expect(page.locator("svg rect")).to_be_visible()
        for summary in page.locator("summary").all():
            summary.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
        back, text = page.evaluate(
            "(({backgroundColor, color}) => [backgroundColor, color])(getComputedStyle(document.body))"
        )
        lightness = [sum(map(int, re.findall(r"\d+", each)[:3])) for each in (back, text)]
        assert (lightness[0] > lightness[1] + 300) if scheme == "light" else (lightness[1] > lightness[0] + 300)
    assert problems == []
    page.context.close()
