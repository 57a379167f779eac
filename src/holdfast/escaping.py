"""How text from others is shown: names and owners are chosen by whoever takes a lock.

Nothing of them may move a cursor, colour a line, begin a line of a log, or fill a page.
"""

import unicodedata

MOST = 120
"""How many characters of an owner stand in an error or a log."""

STORE_ERROR = 2000
"""How many characters the text of an error has that a store raises: of a quorum it quotes those of all nodes."""

ERROR = 500
"""How many of the text of an error, which a server may have written."""


def escape(text: str) -> str:
    """Return `text` on one line, with everything that is not plainly visible written as an escape sequence."""
    return text if text.isascii() and text.isprintable() else "".join(map(_visible, text))


def shown(text: str, most: int = MOST) -> str:
    """Return an owner, or another text, as it stands in an error or a log: escaped, and not too long."""
    escaped = escape(text[: most + 1])
    return escaped if len(escaped) <= most else escaped[:most] + "..."


def told(error: BaseException) -> str:
    """Return the text of an error as it stands in a log or another error."""
    return shown(str(error), ERROR).rstrip(".")


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    if category[0] == "C" or category in ("Zl", "Zp"):
        return character.encode("unicode_escape", "surrogatepass").decode("ascii")
    return character
