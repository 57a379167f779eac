"""The numbers of this release: they fit together, and to the version of the package."""

from importlib import metadata

import pytest

from tenure import StoreError
from tenure.contracts import forms


def test_a_release_reads_what_it_writes_and_at_most_one_form_more() -> None:
    """What it writes, the release before it reads."""
    assert forms.WRITES <= forms.READS <= forms.WRITES + 1
    assert sorted(forms.READ_SINCE) == list(range(1, forms.READS + 1))


def test_the_release_is_the_version_of_the_package() -> None:
    """An error names it."""
    assert metadata.version("tenure") == forms.RELEASE


def test_a_mark_is_read_as_it_was_written() -> None:
    """Whatever follows it; what has no mark is of no form."""
    assert forms.check(f"{forms.mark()}form 9 9.9.9 ", "it") == forms.WRITES
    assert [forms.check(text, "it") for text in ("", "form", "formal", "[1]", " form 2 0.2.0 ")] == [0] * 5


@pytest.mark.parametrize(
    "mark",
    [
        "form 2",
        "form 2 ",
        "form 2  ",
        "form x 0.1.0 ",
        "form \uff12 0.2.0 ",
        f"form {'9' * 5000} 9.0 ",
        "form 2 \x1b[31m ",
    ],
)
def test_a_mark_that_cannot_be_read_is_refused(mark: str) -> None:
    """It is not taken for none, which a client would overwrite; and nothing of it is shown."""
    with pytest.raises(StoreError, match="it has the number of its form in a way that") as caught:
        forms.check(mark, "it")
    assert len(str(caught.value)) < 200
    assert "\x1b" not in str(caught.value)


def test_the_error_says_what_to_do() -> None:
    """It names the form, the release that is needed, and this one."""
    with pytest.raises(StoreError) as caught:
        forms.check("form 12 1.4.0 ", "redis://host")
    assert str(caught.value) == (
        "redis://host has form 12, which Tenure 1.4.0 or later reads; this is Tenure "
        f"{forms.RELEASE}, which reads form 1: upgrade this program, or give it a store of its own"
    )
