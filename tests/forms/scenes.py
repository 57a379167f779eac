"""The scenes of the stored form, which are written once for all stores."""

from collections.abc import Callable
from pathlib import Path

from tests.forms.releases import AFTER, NEXT, PRESENT, Fleet, Program, wait_for_waiter
from tests.forms.stores import LATER, LONG, Kept
from tests.servers import wait_until

ASYNCIO = "asyncio"

THIS = "form 1 0.1.0 "

SOON = 15.0
"""Several times as long as a client may take to look at the number again, in seconds."""


def play(kept: Kept, scene: Callable[[Kept, Fleet], None], source: Path | None = None) -> None:
    """Play a scene, and end its programs. `source` is the folder of their code, if that is not the code of the test."""
    fleet = Fleet(kept.url, source)
    try:
        scene(kept, fleet)
    finally:
        fleet.end()


def refused(kept: Kept, program: Program, command: str, *args: object) -> None:
    """Check that a command is refused, with the form, the release that is needed, and what to do."""
    said = program.refusal(command, *args)
    assert said.startswith("StoreError: "), f"{command} {args}: {said or 'not refused'}"
    for words in ("has form 2", "Tenure 0.2.0 or later", "reads form 1", "upgrade"):
        assert words in said, f"{command} {args}: {said}"
    assert not kept.secret or kept.secret not in said, "an error has a secret of the URL"


def first_and_second_client(kept: Kept, fleet: Fleet) -> None:
    """Have the first client write the number of the form; the second finds it, and leaves it."""
    first, second = fleet.start(PRESENT), fleet.start(PRESENT, ASYNCIO)
    token = first.do("acquire", "name", 0)
    assert kept.mark() == THIS
    first.do("release", "name")
    assert second.do("acquire", "name", 0) > token
    second.do("release", "name")
    assert kept.mark() == THIS


def later_number(kept: Kept, fleet: Fleet) -> None:
    """Have clients open a store of a later form, or work in it: they are refused, and change nothing."""
    running = {form: fleet.start(PRESENT, form) for form in ("threads", ASYNCIO)}
    for form, program in running.items():
        program.do("acquire", f"held by {form}", 0)
        program.do("acquire", f"used by {form}", 0)
        program.do("release", f"used by {form}")
    raising = fleet.start(AFTER)
    raising.do("acquire", "raised", 0)
    raising.do("release", "raised")
    raising.do("close")
    assert kept.mark() == LATER, "the later release has not raised the number"
    kept.plant("later")
    for form, program in running.items():
        if not kept.at_once:
            wait_until(lambda: is_refused(program, f"seen by {form}"), "a look at the number", SOON)  # noqa: B023 - at once
    before = kept.dump()
    assert before
    for form, program in running.items():  # first, while the lease certainly lasts
        refused(kept, program, "extend", f"held by {form}")
    for form, other in ("threads", ASYNCIO), (ASYNCIO, "threads"):
        refused(kept, fleet.start(PRESENT, form), "acquire", "free", 0)
        refused(kept, running[form], "acquire", "free", 0)
        refused(kept, running[form], "acquire", f"used by {form}", 0)
        refused(kept, running[form], "acquire", "later", 0)
        refused(kept, running[form], "acquire", f"held by {other}", 0)
    assert not (each := changed(before, kept.dump())), f"a client has changed what a later form keeps: {each}"


def changed(before: list[object], after: list[object]) -> list[object]:
    """Return what is no longer kept, or new; but for the name `free`, which is of no later form."""
    return [each for each in [*before, *after] if (each in before) != (each in after) and "free" not in str(each)]


def is_refused(program: Program, name: str) -> bool:
    """Tell whether a program is refused, which releases the lock if not.

    A request that is under way when the number is seen may have been carried out, and says so; no later one does.
    """
    if said := program.refusal("acquire", name, 0):
        assert said.startswith(("StoreError: ", "OutcomeUnknown: ")), said
        assert "has form 2" in said, said
        return said.startswith("StoreError: ")
    program.do("release", name)
    return False


def later_value(kept: Kept, fleet: Fleet) -> None:
    """Have clients meet a value of a later form: they take it for nothing else, and go on with all others."""
    programs = [fleet.start(PRESENT, form) for form in ("threads", ASYNCIO)]
    for number, program in enumerate(programs):
        program.do("acquire", f"first {number}", 0)
        program.do("release", f"first {number}")
    if kept.cells:
        kept.plant_cell("count")
    kept.plant("later")
    before = kept.dump()
    assert "later" in str(before)
    for program in programs:
        refused(kept, program, "acquire", "later", 0)
        refused(kept, program, "inspect", "later")
        refused(kept, program, "revoke", "later")
        if kept.together:
            refused(kept, program, "together", "free", "later")
        if kept.cells:
            refused(kept, program, "add", "count")
    assert not (each := changed(before, kept.dump())), f"a client has changed what a later form keeps: {each}"
    assert all(program.do("acquire", "free", 20) and program.do("release", "free") for program in programs)


def rolling_deploy(kept: Kept, fleet: Fleet) -> None:
    """Deploy the next release and the one after it, forward and back, while a lock is held and waited for."""
    first, second = fleet.start(PRESENT), fleet.start(NEXT, ASYNCIO)
    second.do("acquire", "introduced", 0)
    assert kept.mark() == THIS, "a release writes a form that it introduces"
    tokens = [first.do("acquire", "name", 0)]
    tokens += hand_over(kept, first, second)  # forward
    third = fleet.start(PRESENT, ASYNCIO)
    tokens += hand_over(kept, second, third)  # and back
    tokens += hand_over(kept, third, second)
    if kept.numbered:
        assert kept.mark() == THIS
    fourth = fleet.start(AFTER)
    tokens += hand_over(kept, second, fourth)  # the next deploy
    assert kept.mark() == LATER
    fifth = fleet.start(NEXT)
    tokens += hand_over(kept, fourth, fifth)  # and back
    tokens += hand_over(kept, fifth, second)
    tokens += hand_over(kept, second, fourth)
    fifth.do("acquire", "delayed", 0, 2 * LONG)  # longer than all before, so the marker in Redis is written
    fifth.do("release", "delayed")
    if kept.numbered:
        assert kept.mark() == LATER, "a release has lowered the number"
        refused(kept, fleet.start(PRESENT), "acquire", "free", 0)
    assert fourth.do("release", "name") == "released"
    assert tokens == sorted(set(tokens)), "tokens do not grow"


def hand_over(kept: Kept, holder: Program, waiter: Program) -> list[int]:
    """Have a waiter of one release get the name from a holder of another; return its token."""
    waiting = waiter.begin("acquire", "name", None)
    if kept.queues:
        wait_for_waiter(holder, "name")
    assert holder.do("check", "name") == "held"
    assert not waiting.done(), "there are two holders"
    assert holder.do("release", "name") == "released"
    return [waiting.result(30.0)]
