"""Bugs to plant in the hand-over of leases, to see that the simulation notices."""

from collections.abc import Callable

import simulation.handovers
from tenure.core import handover
from tenure.table.step import Step
from tests.planting import module_with, planted
from tests.simulated.mutants import Mutant, Patch, replaced


def in_protocol(*changes: tuple[str, str]) -> Callable[[], Patch]:
    """Return a way to change the text of the protocol, from what is right to what is wrong."""
    return replaced(simulation.handovers, "handover", module_with(handover, *changes))


def in_method(owner: type, method: str, right: str, wrong: str) -> Callable[[], Patch]:
    """Return a way to change the text of a method."""
    return replaced(owner, method, planted(owner, method, right, wrong))


SCENARIOS = ("handover",)

HANDOVER_MUTANTS = (
    Mutant(
        "an adopted lease keeps its request",
        in_method(Step, "_hand_over", "= adjust.successor, adjust.channel, False", "= holder.request_id, '', False"),
        SCENARIOS,
    ),
    Mutant(
        "an adopted lease keeps its token",
        in_method(Step, "_raise", "if not adjust.raise_to or", "if True or"),
        SCENARIOS,
    ),
    Mutant(
        "a repeated hand-over is refused",
        in_method(Step, "adjust", "self.state.find_holder(adjust.successor) is not None", "False"),
        SCENARIOS,
    ),
    Mutant(
        "the old request is served after a hand-over",
        in_method(Step, "_hand_over", "self.state.add_tombstone(holder.request_id, self.now)", "pass"),
        SCENARIOS,
    ),
    Mutant(
        "a detached lease is held and renewed as before",
        in_protocol(
            ("if not lease.detach():", "if False:"),
            (
                "    session.renewer.discard(lease)\n",
                "    lease.grant.detaching = False\n    session.renewer.plan(lease)\n",
            ),
        ),
        SCENARIOS,
    ),
    Mutant(
        "a lease that has ended is adopted",
        in_protocol(("if owner.handle == handle.request_id:", "if True:")),
        SCENARIOS,
    ),
    Mutant(
        "the next adopter does not wait for the one before",
        in_protocol(("0.0 if found.detached else await _end_of_earlier(session, adjust, title)", "0.0")),
        SCENARIOS,
    ),
    Mutant(
        "an adoption is counted from its last reply",
        in_protocol(("valid_until(sent, renewal.ttl)", "valid_until(session.runtime.now(), renewal.ttl)")),
        SCENARIOS,
        first=322,
    ),
    Mutant(
        "an adopted lease is not renewed",
        in_protocol(("    session.renewer.add(lease)\n    session.highest_token", "    session.highest_token")),
        SCENARIOS,
    ),
    Mutant(
        "a lease that may be detached is trusted while it is released",
        in_protocol(
            ('    session.renewer.lose(lease, "it was to be detached, but its handle was never returned")\n', "")
        ),
        SCENARIOS,
    ),
    Mutant(
        "a detachment without a reply leaves the lease as it was",
        in_protocol(("        refused = Outcome.UNKNOWN\n", "        refused = None\n")),
        SCENARIOS,
    ),
    Mutant(
        "nobody watches the deadline of a lease that is being detached",
        in_protocol(("        await _stop_renewals(session, lease)\n", "        session.renewer.discard(lease)\n")),
        SCENARIOS,
    ),
)
