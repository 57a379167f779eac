"""Bugs that a maintainer could make with the stored form: each is planted in a copy of the code, and is found."""

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import tenure
from tests.forms import scenes
from tests.forms.releases import Fleet, Refused
from tests.forms.stores import (
    Kept,
    KeptInEtcd,
    KeptInFile,
    KeptInMemcached,
    KeptInMySql,
    KeptInPostgres,
    KeptInRedis,
    KeptInZooKeeper,
)
from tests.servers import RedisServer
from tests.servers.waiting import ServerFailedError

Scene = Callable[[Kept, Fleet], None]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug: the text of a file, what replaces it, and the scene that finds it in a store."""

    file: str
    text: str
    wrong: str
    scene: Scene
    store: str = "file"


CHECK = "    if form > READS:"
OPENING = 'if forms.check(connection.execute("SELECT form FROM meta").fetchone()[0], str(path)) < forms.WRITES:'
BUMPED = '        connection.execute("UPDATE names SET version = version + 1")\n'
NEEDED = "which Tenure {needed} or later reads"

MUTANTS = {
    "this form is refused": Mutant(
        "contracts/forms.py", CHECK, "    if form >= READS:", scenes.first_and_second_client
    ),
    "no form is refused": Mutant("contracts/forms.py", CHECK, "    if form > READS + 1:", scenes.later_number),
    "the error does not say which release is needed": Mutant(
        "contracts/forms.py", NEEDED, "which a later Tenure reads", scenes.later_number
    ),
    "the error is taken for an outage": Mutant(
        "contracts/forms.py", "import StoreError", "import StoreUnavailable as StoreError", scenes.later_number
    ),
    "what is introduced is written at once": Mutant(
        "contracts/forms.py",
        '{WRITES} {READ_SINCE[WRITES]} "',
        '{READS} {READ_SINCE[READS]} "',
        scenes.rolling_deploy,
    ),
    "a cell is not looked at": Mutant(
        "core/cells.py", "    forms.check(cell.value", "    (lambda *_: None)(cell.value", scenes.later_value
    ),
    "a file is looked at when it is opened": Mutant(
        "stores/sqlite/database.py", "            forms.check(form, str(self._path))\n", "", scenes.later_number
    ),
    "a state that a client remembers is not looked at": Mutant(
        "stores/sqlite/opening.py", BUMPED, "", scenes.later_number
    ),
    "an old writer lowers the number in a file": Mutant(
        "stores/sqlite/opening.py", OPENING, OPENING.replace("<", "!="), scenes.rolling_deploy
    ),
    "a state of a later form is taken for damage": Mutant(
        "stores/table_codec.py",
        "        forms.check(str(text), ",
        "        (lambda *_: None)(text, ",
        scenes.later_value,
    ),
    "a script grants whatever the marker says": Mutant(
        "stores/redis/lua/start.lua",
        "string.sub(marker, 1, #MARK) == MARK",
        "string.sub(marker, 1, 5) == 'form '",
        scenes.later_number,
        "redis",
    ),
    "no script looks at the form in the marker": Mutant(
        "stores/redis/lua/state.lua", "if form > READS then", "if form > READS + 1 then", scenes.later_number, "redis"
    ),
    "an old writer lowers the number in the marker": Mutant(
        "stores/redis/lua/state.lua",
        "local mark = kept and form > WRITES and string.sub(kept, 1, kept_at - 1) or MARK",
        "local mark = MARK",
        scenes.rolling_deploy,
        "redis",
    ),
    "the number in the marker is not raised": Mutant(
        "stores/redis/lua/state.lua", " or kept and form < WRITES", "", scenes.rolling_deploy, "redis"
    ),
    "a state of a later form is taken for none": Mutant(
        "stores/redis/lua/start.lua",
        "elseif packed then",
        "elseif packed and string.sub(packed, 1, 5) ~= 'form ' then",
        scenes.later_value,
        "redis",
    ),
    "a function grants whatever the number is": Mutant(
        "stores/postgresql/schema.sql",
        "            AND m.quarantined_until <= @now\n            AND m.form <= in_reads\n",
        "            AND m.quarantined_until <= @now\n",
        scenes.later_number,
        "postgresql",
    ),
    "a snapshot is read whatever the number is": Mutant(
        "stores/postgresql/schema.sql",
        "        WHERE form > in_reads\n            OR",
        "        WHERE",
        scenes.later_number,
        "postgresql",
    ),
    "a statement grants whatever the number is": Mutant(
        "stores/mysql/statements.py", '<= $now "\n    "AND m.form <= $reads"', '<= $now"', scenes.later_number, "mysql"
    ),
    "a snapshot is used whatever the number is": Mutant(
        "stores/mysql/database.py", "        self._check(mark_of(lines))\n", "", scenes.later_number, "mysql"
    ),
    "a record of a later form is taken for none": Mutant(
        "stores/memcached/items.py",
        "        except ValueError:\n",
        "        except (ValueError, errors.StoreError):\n            return NOTHING\n",
        scenes.later_value,
        "memcached",
    ),
    "an etcd session looks when it begins": Mutant(
        "stores/etcd/session.py",
        "                self._check_form(form)\n",
        "                pass\n",
        scenes.later_number,
        "etcd",
    ),
    "a key of a later form is taken for another program's": Mutant(
        "stores/etcd/keys.py", "            refuse_later(tail)\n", "            pass\n", scenes.later_value, "etcd"
    ),
    "a node of a later form is taken for another program's": Mutant(
        "stores/zookeeper/names.py",
        "        forms.check(node, ",
        "        (lambda *_: None)(node, ",
        scenes.later_value,
        "zookeeper",
    ),
    "a ZooKeeper session looks when it begins": Mutant(
        "stores/zookeeper/directory.py",
        "        await self._nodes.agree_on_form(until)\n        await self._nodes.remove_unused",
        "        await self._nodes.get(self._nodes.root, until)\n        await self._nodes.remove_unused",
        scenes.later_number,
        "zookeeper",
    ),
    "a lease of PostgreSQL is renewed whatever the number": Mutant(
        "stores/postgresql/schema.sql",
        "        AND EXISTS (SELECT FROM @meta WHERE form <= in_reads)\n    RETURNING n.request_id",
        "    RETURNING n.request_id",
        scenes.later_number,
        "postgresql",
    ),
    "a lease of MySQL is renewed whatever the number": Mutant(
        "stores/mysql/statements.py",
        'expires_at <= $now + ttl "\n    "AND EXISTS (SELECT 1 FROM $meta AS m WHERE m.one = 1 AND m.form <= $reads)"',
        'expires_at <= $now + ttl"',
        scenes.later_number,
        "mysql",
    ),
}

SERVERS: dict[str, tuple[str, Callable[..., Kept]]] = {
    "postgresql": ("postgres_server", KeptInPostgres),
    "mysql": ("mariadb_server", KeptInMySql),
    "memcached": ("memcached_server", KeptInMemcached),
    "etcd": ("etcd_server", KeptInEtcd),
    "zookeeper": ("zookeeper_server", KeptInZooKeeper),
}


@contextmanager
def kept_in(store: str, folder: Path, request: pytest.FixtureRequest) -> Generator[Kept, None, None]:
    """Return a store of this test."""
    if store == "file":
        yield KeptInFile(folder / "locks.db")
    elif store == "redis":
        with RedisServer(folder) as server:
            yield KeptInRedis(server)
    else:
        fixture, make = SERVERS[store]
        yield make(request.getfixturevalue(fixture))


def planted(mutant: Mutant, folder: Path) -> Path:
    """Return a folder with a copy of the code that has the bug."""
    shutil.copytree(Path(tenure.__file__).parent, folder / "tenure")
    file = folder / "tenure" / mutant.file
    text = file.read_text("utf-8")
    assert text.count(mutant.text) == 1, f"{mutant.file} has changed"
    file.write_text(text.replace(mutant.text, mutant.wrong), "utf-8")
    return folder


@pytest.mark.parametrize("bug", MUTANTS)
def test_a_planted_bug_is_found(bug: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The scene fails with it."""
    mutant = MUTANTS[bug]
    code = planted(mutant, tmp_path / "code")
    (tmp_path / "store").mkdir()
    with (
        kept_in(mutant.store, tmp_path / "store", request) as kept,
        pytest.raises((AssertionError, Refused, TimeoutError, ServerFailedError)),
    ):
        scenes.play(kept, mutant.scene, code)
