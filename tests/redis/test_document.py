"""docs/redis.md tells all there is: every scheme, every option, every guard, every error."""

import re

import pytest

from tenure.stores.redis.deployment import GUARDS
from tenure.stores.redis.links.errors import LASTING, PASSING
from tenure.stores.redis.options import OPTIONS, RULES
from tenure.stores.urls import SCHEMES
from tests.redis.servers import DOCUMENT

TEXT = DOCUMENT.read_text("utf-8")

IN_THE_URL = {"username", "password", "db"}
"""Options for which a URL has a place of its own."""


@pytest.mark.parametrize("word", [*RULES, *sorted(OPTIONS.keys() - IN_THE_URL), *GUARDS, *PASSING, *LASTING])
def test_every_word_is_explained(word: str) -> None:
    """An option, a guard or an error code that a user may meet is in the document."""
    assert re.search(rf"`{word}(=k)?`", TEXT)


def test_every_scheme_is_named() -> None:
    """Every scheme that a URL may begin with is in the document, under its first name."""
    redis = {scheme for scheme in SCHEMES if scheme.startswith(("redis", "unix"))}
    assert redis == {found.group(1) for found in re.finditer(r"`((?:redis|unix)[a-z+]*)://", TEXT)}
    assert {scheme.replace("valkey", "redis") for scheme in SCHEMES if scheme.startswith("valkey")} < redis
