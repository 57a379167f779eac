"""How the links of SQL databases fail. Users never see these errors: they are translated."""


class SqlServerError(Exception):
    """The server replied with an error."""

    def __init__(self, code: str | int, message: str) -> None:
        """Keep the server's code of the error, and the message."""
        super().__init__(message)
        self.code = code


class SqlBroken(OSError):
    """The connection broke, or did not answer in time."""
