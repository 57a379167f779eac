"""HTML as text. The rule: `tag` is the one way to make it, and it escapes whatever is not HTML already."""

import html
from collections.abc import Iterable
from importlib.resources import files
from urllib.parse import urlencode

from tenure.escaping import MOST, escape, shown

VOID = {"input", "link", "meta"}
"""The elements without an end tag."""

NAV = {
    "": "Trouble",
    "names": "Names",
    "jobs": "Jobs",
    "elections": "Elections",
    "quantities": "Limits and stocks",
    "store": "Store",
}
"""The pages that every page links to, by path."""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Return a value as HTML that shows its text, in elements and in quoted attributes; HTML stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(escape(str(value))))


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Return an element. Attributes: `class_` is `class`, `data_x` is `data-x`; None and False are left out."""
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    end = "" if name in VOID else f"{joined(children)}</{name}>"
    return Html(f"<{name}{shown}>{end}")


def joined(parts: Iterable[object]) -> Html:
    """Return several parts one after another."""
    return Html("".join(map(escaped, parts)))


def theirs(text: str, most: int = MOST) -> Html:
    """Return text of others, cut after `most` characters; it does not turn the direction of what stands around it."""
    return tag("bdi", shown(text, most))


def field(label: str, name: str, **attributes: object) -> Html:
    """Return an input of a form under its label."""
    return tag("label", label, tag("input", name=name, **attributes))


def table(headings: Iterable[str], rows: Iterable[Iterable[object]], nothing: str) -> Html:
    """Return a table whose cells know their headings, for narrow screens; a sentence if it has no rows."""
    names = list(headings)
    lines = [
        tag("tr", *(tag("td", cell, data_label=name) for name, cell in zip(names, row, strict=True))) for row in rows
    ]
    if not lines:
        return tag("p", nothing, class_="none")
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in names)))
    return tag("table", head, tag("tbody", *lines))


def link(root: str, path: str, **query: object) -> str:
    """Return the address of a page of the app that is mounted at `root`."""
    given = {key: value for key, value in query.items() if value not in ("", None)}
    return f"{root}/{path}" + (f"?{urlencode(given)}" if given else "")


def document(
    title: str, body: Html, status: object, *, root: str, nonce: str, here: str | None = None, part: bool = False
) -> str:
    """Return a whole page; `here` is its path in the navigation. Without `here` it neither navigates nor changes.

    A page of which the script shows a `part` has no style and script: what the parser finds there would be blocked.
    """
    nav = [
        tag("a", text, href=link(root, path), aria_current="page" if path == here else None)
        for path, text in (NAV.items() if here is not None else ())
    ]
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} - Tenure"),
        tag("link", rel="icon", href="data:,"),
        "" if part else tag("style", STYLE, nonce=nonce),
    )
    return "<!doctype html>" + tag(
        "html",
        head,
        tag(
            "body",
            tag("a", "Skip to the content", href="#main", class_="skip"),
            tag("header", tag("b", "Tenure"), tag("nav", *nav, aria_label="Pages")),
            tag("main", tag("h1", title), body, id="main", tabindex="-1"),
            tag("footer", tag("p", status, id="status"), tag("p", "", id="live", role="status")),
            tag("script", SCRIPT, nonce=nonce) if here is not None and not part else "",
            data_events=link(root, "events"),
        ),
        lang="en",
    )


def _own(name: str) -> Html:
    """Return a file of this package, for a `style` or `script` element."""
    return Html(files("tenure.console").joinpath(name).read_text("utf-8"))


STYLE, SCRIPT = _own("console.css"), _own("console.js")
