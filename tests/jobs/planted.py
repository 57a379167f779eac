"""Bugs to plant in the record of a job, as changes of its text."""

import inspect
import types

from tenure.jobs import record


def planted(before: str, after: str) -> types.ModuleType:
    """Return the module `record` with a bug: it says `after` where it said `before`."""
    text = inspect.getsource(record)
    assert before in text
    module = types.ModuleType("wrong_record")
    exec(compile(text.replace(before, after), "wrong_record", "exec"), module.__dict__)  # noqa: S102 - our own text
    return module
