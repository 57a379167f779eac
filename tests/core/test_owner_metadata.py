"""What a store is told of an owner can be read back, and nothing else is taken for it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.owner_metadata import SEPARATOR, OwnerMetadata, read_metadata

NAMES = st.text(st.characters(exclude_characters=SEPARATOR, exclude_categories=["Cs"]), min_size=1)


@given(NAMES, st.text(), st.text(), st.lists(st.text()))
def test_a_label_is_read_as_it_was_written(owner: str, value: str, actor: str, holds: list[str]) -> None:
    """Whatever it says."""
    metadata = OwnerMetadata(owner, value, actor, tuple(holds))
    assert read_metadata(metadata.text()) == metadata


def test_an_owner_that_says_no_more_is_its_own_label() -> None:
    """So most requests are no longer than they were."""
    assert OwnerMetadata("web-1/4711").text() == "web-1/4711"


@pytest.mark.parametrize("text", ["a\x1f", "a\x1f[]", "a\x1fnull", 'a\x1f{"h":5}', "a\x1fb\x1fc"])
def test_what_is_no_label_is_an_owner(text: str) -> None:
    """Nobody is misled by an owner that looks like one."""
    assert read_metadata(text) == OwnerMetadata(text)
