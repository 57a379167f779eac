"""The console: an ASGI app that shows names, jobs and the store in a browser. See docs/console.md.

It needs the extra `web`: Starlette. Nothing else in Tenure imports this package but the command `tenure serve`.
"""

from tenure.stores.extras import needed_by

with needed_by("the console", "Starlette", "web", "starlette"):
    from tenure.console.app import Console, console
    from tenure.console.rights import Access, Token

__all__ = ["Access", "Console", "Token", "console"]
