"""Names that libraries keep to themselves, and whose absence would go unseen: nothing fails if they are renamed."""

from types import FunctionType

import hiredis
import pymysql.connections
import pytest
from redis._parsers.hiredis import _AsyncHiredisParser


@pytest.mark.parametrize("name", ["_read_timeout", "_write_timeout"])
def test_pymysql_reads_a_timeout_before_it_waits(name: str) -> None:
    """Tenure sets it for each statement, so that a server that stands still keeps nobody for longer."""
    methods = [each for each in vars(pymysql.connections.Connection).values() if isinstance(each, FunctionType)]
    users = {each.__name__ for each in methods if name in each.__code__.co_names}
    assert users - {"__init__", "connect"}


def test_the_parser_of_redis_py_has_a_reader_that_tells_what_it_has() -> None:
    """By this Tenure sees what a server has sent that nobody asked for, before it takes a connection over."""
    assert "_reader" in _AsyncHiredisParser.__slots__
    assert not hiredis.Reader().has_data()
