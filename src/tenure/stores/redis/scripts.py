"""The Lua scripts, one per operation, with their digests, which are computed at import.

A script is a file. What several of them have in common stands in macros, which other files define: in a script, and in
a macro, `@name(arguments)` stands for the text of the macro. So the code of the usual cases makes no function, and an
uncontended acquire or release is done before the script even looks at the queue.
"""

import hashlib
import re
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import chain

from tenure.contracts import forms

_FOLDER = files("tenure.stores.redis") / "lua"

_DEFINITION = re.compile(r"--@define (\w+)\((.*?)\)\n(?:--.*\n)*\n*((?s:.*?))\s*(?=\n--@define|\Z)")
"""The definition of a macro, without the comment that it begins with: its name, its parameters and its text."""

_USE = re.compile(r"@(\w+)\(")
"""The begin of a use of a macro."""

Macros = dict[str, tuple[list[str], str]]
"""The parameters and the text of each macro."""


@dataclass(slots=True, frozen=True)
class Script:
    """One script: its text, and the digest under which a server caches it."""

    name: str
    text: str
    guarded: bool
    """Whether the script always reads and writes the marker, so that replicas must have its writes."""
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        """Compute the digest."""
        object.__setattr__(self, "digest", hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest())


def read(name: str) -> str:
    """Return the text of a file, as it stands there."""
    return (_FOLDER / f"{name}.lua").read_text("utf-8")


def macros() -> Macros:
    """Return the macros. The text of each contains no use of another, which must be defined before it."""
    found: Macros = {}
    for name, parameters, text in chain.from_iterable(_DEFINITION.findall(read(each)) for each in MACROS):
        found[name] = (parameters.split(", ") if parameters else [], expand(text, found))
    return found


def expand(text: str, known: Macros) -> str:
    """Return a text with the uses of macros replaced. Raises KeyError or ValueError for a wrong use."""
    done, parts = 0, list[str]()
    while use := _USE.search(text, done):
        begin = use.start()
        arguments, end = _arguments(text, use.end())
        parameters, body = known[use[1]]
        if given := dict(zip(parameters, (_operand(expand(each, known)) for each in arguments), strict=True)):
            body = re.sub(r"\w+", lambda word: given.get(word[0], word[0]), body)
        line = text[text.rfind("\n", 0, begin) + 1 : begin]
        parts += text[done:begin], body.replace("\n", "\n" + line) if line.isspace() else body
        done = end
    return "".join(parts) + text[done:]


def _operand(argument: str) -> str:
    """Return an argument as a part of any expression."""
    return f"({argument})" if " " in argument else argument


def _arguments(text: str, at: int) -> tuple[list[str], int]:
    """Return the arguments of a macro that begin at a place in a text, and the place where the text goes on."""
    found, begin, depth = list[str](), at, 0
    while depth or text[at] != ")":
        depth += (text[at] in "({") - (text[at] in ")}")
        if text[at] == "," and not depth:
            found.append(text[begin:at].strip())
            begin = at + 1
        at += 1
    return [*found, text[begin:at].strip()] if at > begin else [], at + 1


def _script(name: str, flags: str = "", *, guarded: bool = False) -> Script:
    return Script(name, f"#!lua{flags}\n{FORM}\n{expand(read(name), _KNOWN)}", guarded)


MACROS = ("formulas", "start", "state", "queue", "full_acquire", "passable")
"""The files that define macros."""

_KNOWN = macros()

FORM = f"local MARK, WRITES, READS = '{forms.mark()}', {forms.WRITES}, {forms.READS}"
"""What each script knows of the stored form: contracts/forms.py."""

ALLOW_OOM = " flags=allow-oom"
"""The flag of scripts that free memory, or must not fail when the server is out of memory."""

ACQUIRE = _script("acquire", guarded=True)
ACQUIRE_MANY = _script("acquire_many", guarded=True)
RELEASE = _script("release", ALLOW_OOM)
RENEW = _script("renew", ALLOW_OOM, guarded=True)
ADJUST = _script("adjust", ALLOW_OOM)
WITHDRAW = _script("withdraw", ALLOW_OOM)
RESIZE = _script("resize", ALLOW_OOM)
REQUEST_REVOCATION = _script("request_revocation", ALLOW_OOM)
REVOKE = _script("revoke", ALLOW_OOM)
INSPECT = _script("inspect", " flags=no-writes")
IN_USE = _script("in_use", " flags=no-writes")
CELL = _script("cell", guarded=True)
CELL_ADD = _script("cell_add", guarded=True)
PLAIN_KEY = _script("plain_key", guarded=True)
END_QUARANTINE = _script("end_quarantine", ALLOW_OOM, guarded=True)

ALL = tuple(each for each in globals().values() if isinstance(each, Script))
