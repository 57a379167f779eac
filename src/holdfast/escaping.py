"""How text from others is shown: names and owners are chosen by whoever takes a lock.

Nothing of them may move a cursor, colour a line, begin a line of a log, or fill a page.
"""

import unicodedata

MOST = 120
"""How many characters of an owner stand in an error or a log."""


def escape(text: str) -> str:
    """Return `text` on one line, with everything that is not plainly visible written as an escape sequence."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def shown(owner: str) -> str:
    """Return an owner as it stands in an error or a log: escaped, and not too long."""
    text = escape(owner[: MOST + 1])
    return text if len(text) <= MOST else text[:MOST] + "..."


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "C" or category in ("Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
