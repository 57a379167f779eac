"""The form of the API in which a test of the doctor looks at a server."""

import zlib
from typing import cast

import pytest

FORMS = ("threads", "asyncio")


@pytest.fixture
def form(request: pytest.FixtureRequest) -> str:
    """Return one form, by the name of the test: what is wrongly set is found by the same code in both.

    What differs is how a server is asked, so each kind of store is asked in both forms by some test.
    """
    test = cast("pytest.Item", request.node)  # pyright: ignore[reportUnknownMemberType] - pytest tells no type
    return FORMS[zlib.crc32(test.name.encode()) % len(FORMS)]
