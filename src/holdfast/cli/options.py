"""The arguments and options that several commands share, and the commands' own way to read them."""

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

AFTER_DASHES = "holdfast.after_dashes"
"""Where in a context stands what came after `--`; not there if there was no `--`."""


class DashesCommand(TyperCommand):
    """A command that tells what comes before `--` from what comes after it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override] # typer's own is a click.Context
        """Put what comes after the first `--` aside."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[AFTER_DASHES] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002 - as above
        """Say in the first line of the help what comes where."""
        return ["[OPTIONS] NAME... -- COMMAND..."]


Name = Annotated[str, typer.Argument(metavar="NAME", help="What is locked.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(help="The store. Default: HOLDFAST_URL in the environment, else a lock file of this user."),
]
UrlFile = Annotated[
    Path | None,
    typer.Option(help="A file that holds the URL of the store. Default: HOLDFAST_URL_FILE in the environment."),
]
PassUrl = Annotated[
    bool, typer.Option("--pass-url", help="Give the command the URL in HOLDFAST_URL with its password.")
]
Namespace = Annotated[str, typer.Option(help="A prefix of all names, so that programs can share a store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Owner = Annotated[str | None, typer.Option(help="Who you are, for others to read. Default: host/pid.")]

Ttl = Annotated[float, typer.Option(help="Seconds that the lock outlives a holder that fell silent.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "-w",
        "--timeout",
        min=0,
        help="Seconds to wait for the lock, and for a store that is not up yet. Default: for ever, but 10 s for the "
        "store.",
    ),
]
NoWait = Annotated[bool, typer.Option("-n", "--no-wait", help="Give up at once if it is held, with 75.")]
Shared = Annotated[
    bool, typer.Option("-s", "--shared", help="Hold it as one of many readers, beside others with --shared.")
]
Exclusive = Annotated[
    bool, typer.Option("-x", "--exclusive", help="Hold it alone, where others use --shared: a writer among readers.")
]
Permits = Annotated[
    int | None, typer.Option(min=1, help="Hold one of so many permits. All who use the name give the same number.")
]
MaxHold = Annotated[float | None, typer.Option(help="Seconds after which the lease is lost, whatever goes on.")]
LockDelay = Annotated[float, typer.Option(help="Seconds for which nobody gets it after a lease ran out.")]
ConflictStatus = Annotated[
    int,
    typer.Option("-E", "--conflict-exit-code", min=0, max=255, help="The status if it is not granted in time."),
]
