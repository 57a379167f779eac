from collections.abc import Mapping

class HttpRequest:
    """A request."""

class HttpResponse:
    """A response."""

    def __init__(self, content: str, *, content_type: str, status: int, headers: Mapping[str, str]) -> None: ...
