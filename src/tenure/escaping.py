"""How errors and logs show text that others chose, such as names, owners and errors of servers.

The rule: such text must not move a cursor, colour a line, begin a line of a log, or fill a page.
"""

import unicodedata

MOST = 120
"""The number of characters of an owner that an error or a log shows."""

STORE_ERROR = 2000
"""The number of characters of a store's error message: that of a quorum quotes the errors of all nodes."""

ERROR = 500
"""The number of characters of another error that an error or a log quotes: a server may have written it."""


def escape(text: str) -> str:
    """Return `text` on one line, with an escape sequence for every character that is not plainly visible."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def shown(text: str, most: int = MOST) -> str:
    """Return an owner or another text for an error or a log: escaped, and cut after `most` characters."""
    escaped = escape(text[: most + 1])
    return escaped if len(escaped) <= most else escaped[:most] + "..."


def quoted(error: BaseException) -> str:
    """Return the text of an error, to quote it in a log or in another error."""
    return shown(str(error), ERROR).rstrip(".")


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "C" or category in ("Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
