"""A user and a database for one test, so that its sessions and tables are known."""

from uuid import uuid4

from tests.servers import MariaDbServer

SECRET = "s3cret"  # noqa: S105 - of a user of a test


class Account:
    """A user and a database of a server, both of the same name."""

    def __init__(self, server: MariaDbServer) -> None:
        """Make them."""
        self.name = f"u_{uuid4().hex[:12]}"
        self._server = server
        server.create_database(self.name)
        self.url = self.user(self.name)
        """A URL of the user. It has an option, which says that no commit can be lost: more are added with `&`."""

    def user(self, name: str, limits: str = "") -> str:
        """Make another user who has all rights in the database; return the URL."""
        base = self._server.create_user(name, SECRET)
        self._server.execute(f"GRANT ALL ON `{self.name}`.* TO '{name}'@'%' {limits}")
        return f"{base}{self.name}?guard=off"

    def sessions(self) -> set[int]:
        """Return the ids of the user's sessions."""
        rows = self._server.execute("SELECT id FROM information_schema.processlist WHERE user = %s", self.name)
        return {int(session) for (session,) in rows}

    def execute(self, statement: str) -> None:
        """Execute a statement in the database as administrator."""
        with self._server.connect(database=self.name) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
