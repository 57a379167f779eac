"""The errors of the wrong `with`: each says how the object is entered.

A class inherits them where Python's own error would only say that the object is no context manager.
"""

from typing import TYPE_CHECKING, Never


class EnteredByWith:
    """Refuses `async with`."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker finds these mistakes by itself

        def __aenter__(self) -> Never:
            """Raise TypeError, which names the right statement."""
            raise TypeError(_is_entered(self, "`with`, not by `async with`; for asyncio, use AsyncClient"))

        __aexit__ = __aenter__


class EnteredByAsyncWith:
    """Refuses `with`."""

    __slots__ = ()

    if not TYPE_CHECKING:

        def __enter__(self) -> Never:
            """Raise TypeError, which names the right statement."""
            raise TypeError(_is_entered(self, "`async with`, not by `with`; for threads, use Client"))

        __exit__ = __enter__


class NeverEntered:
    """Refuses both. `_enter_instead` says what to enter."""

    __slots__ = ()
    _enter_instead = ""

    if not TYPE_CHECKING:

        def __enter__(self) -> Never:
            """Raise TypeError, which says what to enter."""
            raise TypeError(f"no `with` enters {_article(self)}: enter its {self._enter_instead}")

        __exit__ = __aenter__ = __aexit__ = __enter__


def _is_entered(wrong: object, how: str) -> str:
    return f"{_article(wrong)} is entered by {how}"


def _article(wrong: object) -> str:
    name = type(wrong).__name__
    return f"{'an' if name[0] in 'AEIO' else 'a'} {name}"
