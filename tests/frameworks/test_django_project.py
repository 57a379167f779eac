"""The project of docs/django.md in processes of its own: its pages, tests and commands, and migrations at once."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import chdir
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tenure.fencing.schema import fences_ddl
from tests.servers import PostgresServer

management: Any = import_module("django.core.management")  # it has no types
start_project: Any = import_module("django.core.management.commands.startproject")

PAGE = (Path(__file__).parents[2] / "docs" / "django.md").read_text("utf-8")
COMMANDS = "".join(re.findall(r"^```sh\n(python manage.py makemigrations.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
FILES = re.findall(r"^```python\n# ([\w/.]+).*?\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)

REPLICAS = 6

FIRST = """
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [
        migrations.CreateModel(
            "Order", [("id", models.BigAutoField(primary_key=True)), ("paid", models.BooleanField(default=False))]
        )
    ]
"""

SECOND = """
import os
import time
from pathlib import Path

from django.db import migrations, models

FOLDER = Path({folder!r})


def work(apps, schema_editor):
    with (FOLDER / "began").open("a") as file:
        file.write("x")
    time.sleep(0.5)
    if (FOLDER / "die").exists():
        (FOLDER / "die").unlink()
        os.kill(os.getpid(), 9)


class Migration(migrations.Migration):
    dependencies = [("shop", "0001_initial")]
    operations = [migrations.AddField("order", "note", models.TextField(default="")), migrations.RunPython(work)]
"""

VISIT = """
import importlib
import os
import sqlite3

os.environ["DJANGO_SETTINGS_MODULE"] = "config.settings"

import django
from django.core.management import call_command
from django.test import Client

django.setup()
call_command("makemigrations", "shop", verbosity=0)
importlib.invalidate_caches()
call_command("check")
call_command("migrate_once")
with sqlite3.connect("db.sqlite3") as database:
    database.executescript(django.conf.settings.FENCES)
    database.execute("INSERT INTO shop_order (paid) VALUES (0)")
database.close()
for page in ("/pay/1", "/pay-guarded/1", "/report", "/cached"):
    print(Client(headers={"host": "localhost"}).get(page).content.decode())
"""


class Project:
    """The project in a folder, with its locks in a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with chdir(folder):
            management.call_command(start_project.Command(), "config", ".")
        (folder / "shop" / "migrations").mkdir(parents=True)
        for path in (folder / "shop", folder / "shop" / "migrations"):
            (path / "__init__.py").touch()
        for name, text in FILES:
            path = folder / name
            before = path.read_text("utf-8") if name == "config/settings.py" else ""
            path.write_text(before + text, "utf-8")
        self.set(f"TENURE['default'] = {{'URL': 'sqlite://{folder}/locks.db', 'TTL': 3}}")

    def set(self, line: str) -> None:
        """Add a line to the settings."""
        with (self.folder / "config" / "settings.py").open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        """Start Python, with warnings as errors."""
        environment = {each: value for each, value in os.environ.items() if not each.startswith("DJANGO")}
        command, pipe = [sys.executable, "-W", "error", *arguments], subprocess.PIPE
        return subprocess.Popen(command, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe, text=True)

    def done(self, *arguments: str) -> str:
        """Run Python to its end, which must be a success; return what it says."""
        with self.start(*arguments) as process:
            output, errors = process.communicate(timeout=240)
        assert process.returncode == 0, (output, errors)
        return output + errors


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return the project."""
    return Project(tmp_path)


def test_the_project_of_the_page_works_as_it_stands(project: Project) -> None:
    """It is sound, migrates, and answers each of its pages; its tests pass, and its locks are seen."""
    project.set(f"FENCES = {fences_ddl('sqlite')!r}")
    said = project.done("-c", VISIT)
    assert "no issues" in said
    assert "Applying shop.0001_initial... OK" in said
    assert re.search(r"\npaid\npaid, under token \d+\n1 orders\n1\n$", said), said
    inner = f"{sys.executable} manage.py tenure ls | cut -f 1"
    assert project.done("manage.py", "tenure", "run", "orders:1", "--", "sh", "-c", inner) == "orders:1\n"


def test_the_tests_of_the_page_pass(project: Project) -> None:
    """Without a server, by the commands of the page, which make the tables."""
    project.set("TENURE['default'] = {'URL': 'redis://localhost:1'}")
    commands = COMMANDS.replace("python ", f"{sys.executable} ")
    said = project.done(
        "-c", "import subprocess, sys; subprocess.run(['sh', '-ec', *sys.argv[1:]], check=True)", commands
    )
    assert "Ran 1 test" in said
    with sqlite3.connect(project.folder / "db.sqlite3") as database:
        assert database.execute("SELECT count(*) FROM tenure_fences JOIN shop_order").fetchone() == (0,)
    database.close()


def prepare(project: Project) -> None:
    """Give the project two migrations. The second takes a while, and notes that it began."""
    folder = project.folder / "shop" / "migrations"
    (folder / "0001_initial.py").write_text(FIRST, "utf-8")
    (folder / "0002_note.py").write_text(SECOND.format(folder=str(project.folder)), "utf-8")


def migrate_at_once(project: Project, command: str, killed: int = 0) -> None:
    """Check that of all replicas that start at once one migrates, and one after each that was killed; others exit 0."""
    started = [project.start("manage.py", command) for _ in range(REPLICAS)]
    said = [process.communicate(timeout=240) for process in started]
    statuses = sorted(process.returncode for process in started)
    assert statuses == [-signal.SIGKILL] * killed + [0] * (REPLICAS - killed), said
    assert (project.folder / "began").read_text() == "x" * (1 + killed)
    assert sum("Applying shop.0002_note... OK" in output for output, _ in said) == 1
    assert sum("No migrations to apply" in output for output, _ in said) == REPLICAS - killed - 1


def test_one_replica_migrates(project: Project) -> None:
    """Six start at once, and all are done when it is done; on SQLite."""
    prepare(project)
    migrate_at_once(project, "migrate_once")


def test_another_goes_on_if_one_is_killed(project: Project, postgres_server: PostgresServer) -> None:
    """In the middle of the migration; on PostgreSQL, with the locks in that database, too."""
    url = postgres_server.create_database("django")
    user, _, rest = url.removeprefix("postgresql://").partition("@")
    server, _, name = rest.partition("/")
    login = {"USER": user.partition(":")[0], "PASSWORD": user.partition(":")[2]}
    place = {"HOST": server.partition(":")[0], "PORT": server.partition(":")[2], "NAME": name.partition("?")[0]}
    project.set(f"DATABASES = {{'default': {{'ENGINE': 'django.db.backends.postgresql', **{place}, **{login}}}}}")
    project.set(f"TENURE['default'] = {{'URL': {url + '?guard=off'!r}, 'TTL': 3}}")
    prepare(project)
    (project.folder / "die").touch()
    migrate_at_once(project, "migrate_once", killed=1)


def test_without_the_lock_it_is_noticed(project: Project) -> None:
    """Planted: Django's own command, by all replicas at once."""
    prepare(project)
    with pytest.raises(AssertionError):
        migrate_at_once(project, "migrate")
