"""The number of the stored form: which form this release writes into a store, and up to which form it reads.

A store keeps a *mark*: the number of the form of what is in it, and the release that a program needs to read that. So
does each value of a later form than the first, in front of all else. A client that meets the mark of a form that it
does not read refuses, and changes nothing. README.md beside it has the rule for releases: what a
release introduces it only reads, and the next release writes it.
"""

import re

from tenure.errors import StoreError

RELEASE = "0.1.0"
"""This release: the version of the package."""

WRITES = 1
"""The form that this release writes."""

READS = 1
"""The latest form that this release reads."""

READ_SINCE = {1: "0.1.0"}
"""By form: the first release that reads it. It has each form up to READS."""

_BEGIN = "form "
_MARK = re.compile(_BEGIN + r"([1-9][0-9]{0,8}) ([!-~]{1,40}) ")


def mark() -> str:
    """Return the mark of what this release writes. It is ASCII, and begins what it marks."""
    return f"{_BEGIN}{WRITES} {READ_SINCE[WRITES]} "


def check(kept: str, where: str) -> int:
    """Return the form that a text begins with as its mark; 0 without a mark.

    Raises StoreError if the form is later, or if a mark cannot be read: nobody may take it for none and overwrite it.

    `where` is what has the mark: a store by its title, a value by its name; without secrets.
    """
    if not kept.startswith(_BEGIN):
        return 0
    found = _MARK.match(kept)
    if found is None:
        raise StoreError(
            f"{where} has the number of its form in a way that Tenure {RELEASE} cannot read: upgrade this program, or "
            "give it a store of its own"
        )
    form = int(found[1])
    if form > READS:
        raise later(form, found[2], where)
    return form


def later(form: int | str, needed: str, where: str) -> StoreError:
    """Return the error of a client that has met a later form, which the release `needed` reads."""
    reads = "form 1" if READS == 1 else f"forms 1 to {READS}"
    return StoreError(
        f"{where} has form {form}, which Tenure {needed} or later reads; this is Tenure {RELEASE}, which reads "
        f"{reads}: upgrade this program, or give it a store of its own"
    )
