"""The arguments and options that several commands share, and the parser of `--` before a command."""

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperCommand

AFTER_DASHES = "holdfast.after_dashes"
"""The key of the words after `--` in the context's `meta`; absent if there was no `--`."""


class DashesCommand(TyperCommand):
    """A command that separates the words before `--` from those after it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override] # typer's own is a click.Context
        """Move the words after the first `--` into the context's `meta`."""
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[AFTER_DASHES] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: typer.Context) -> list[str]:  # type: ignore[override] # noqa: ARG002 - as above
        """Return the usage line of the help."""
        return [f"[OPTIONS] {self.params[0].metavar}"]


Name = Annotated[str, typer.Argument(metavar="NAME", help="The name of the lock.", show_default=False)]
Url = Annotated[
    str | None,
    typer.Option(help="The store. Default: HOLDFAST_URL in the environment, else a lock file of this user."),
]
UrlFile = Annotated[
    Path | None,
    typer.Option(help="A file that contains the URL of the store. Default: HOLDFAST_URL_FILE in the environment."),
]
PassUrl = Annotated[
    bool, typer.Option("--pass-url", help="Pass the URL to the command in HOLDFAST_URL, with its password.")
]
Namespace = Annotated[str, typer.Option(help="A prefix of all names, so that programs can share a store.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Owner = Annotated[str | None, typer.Option(help="The owner that others see. Default: host/pid.")]

Ttl = Annotated[float, typer.Option(help="Seconds after which the lease of a holder that stopped renewing expires.")]
Timeout = Annotated[
    float | None,
    typer.Option(
        "-w",
        "--timeout",
        min=0,
        help="Seconds to wait for the lock, and for a store that does not answer yet. Default: for ever, but 10 s for "
        "the store.",
    ),
]
NoWait = Annotated[bool, typer.Option("-n", "--no-wait", help="Exit with 75 at once if the name is held.")]
Shared = Annotated[
    bool, typer.Option("-s", "--shared", help="Hold the name as a reader, beside others that use --shared.")
]
Exclusive = Annotated[
    bool, typer.Option("-x", "--exclusive", help="Hold the name alone, as a writer, where others use --shared.")
]
Permits = Annotated[
    int | None, typer.Option(min=1, help="Hold one of so many permits. All users of the name give the same number.")
]
MaxHold = Annotated[float | None, typer.Option(help="Seconds after which the lease is lost, even if it is renewed.")]
LockDelay = Annotated[float, typer.Option(help="Seconds for which nobody is granted the name after a lease expired.")]
ConflictStatus = Annotated[
    int,
    typer.Option("-E", "--conflict-exit-code", min=0, max=255, help="The status if the lock is not granted in time."),
]
