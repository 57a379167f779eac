"""Owner metadata that a request carries can be read back, and no other text is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenure.contracts.owner_metadata import SEPARATOR, OwnerMetadata, read_metadata

NAMES = st.text(st.characters(exclude_characters=SEPARATOR, exclude_categories=["Cs"]), min_size=1)


@given(NAMES, st.text(), st.text(), st.lists(st.text()))
def test_owner_metadata_is_read_as_it_was_written(owner: str, value: str, actor: str, holds: list[str]) -> None:
    """The values are arbitrary."""
    metadata = OwnerMetadata(owner, value, actor, tuple(holds))
    assert read_metadata(metadata.text()) == metadata


def test_an_owner_without_metadata_is_written_as_it_is() -> None:
    """Most requests are then no longer than before."""
    assert OwnerMetadata("web-1/4711").text() == "web-1/4711"


@pytest.mark.parametrize("text", ["a\x1f", "a\x1f[]", "a\x1fnull", 'a\x1f{"h":5}', "a\x1fb\x1fc"])
def test_text_that_is_no_metadata_is_an_owner(text: str) -> None:
    """An owner that looks like metadata is still read as an owner."""
    assert read_metadata(text) == OwnerMetadata(text)
