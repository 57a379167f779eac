"""The part of PyMySQL, which has no types of its own, that this project uses."""

from pymysql.connections import Connection as Connection
from pymysql.err import Error as Error
from pymysql.err import MySQLError as MySQLError
from pymysql.err import OperationalError as OperationalError
from pymysql.err import ProgrammingError as ProgrammingError

def connect(
    *,
    host: str,
    port: int,
    user: str,
    password: str = "",
    database: str | None = None,
    autocommit: bool | None = False,
    connect_timeout: float = 10,
    read_timeout: float | None = None,
    write_timeout: float | None = None,
) -> Connection: ...
