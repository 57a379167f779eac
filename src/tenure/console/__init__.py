"""The console: an ASGI app that shows names, jobs and the store in a browser. See docs/console.md.

It needs the extra `web`: Starlette. Nothing else in Tenure imports this package but the command `tenure serve`.
"""

try:
    from tenure.console.app import Console, console
    from tenure.console.rights import Access, Token
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "starlette":
        raise
    raise ModuleNotFoundError("the console needs Starlette: pip install 'tenure[web]'", name=error.name) from error

__all__ = ["Access", "Console", "Token", "console"]
