"""The files and the metadata of the built packages."""

import re
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

from tests.packaging.conftest import FOLDERS, ROOT, Built, run

pytestmark = pytest.mark.xdist_group("packages")  # they are built once

SITE = "https://github.com/tenure-locks/tenure"


def contents(wheel: Path) -> dict[str, bytes]:
    """Return the files of a wheel, by their names."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    (text,) = (text for name, text in contents(wheel).items() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(text.decode())


def test_the_index_will_take_them(built: Built) -> None:
    """Their metadata is complete, and the index can show their descriptions."""
    run(sys.executable, "-m", "twine", "check", "--strict", *built.wheels, *built.sdists)


def test_an_sdist_builds_the_same_wheel(built: Built) -> None:
    """Whoever builds from the source that the index has gets what the index has."""
    for wheel, again in zip(built.wheels, built.wheels_of_sdists, strict=True):
        assert contents(wheel) == contents(again)


def test_both_have_one_version(built: Built) -> None:
    """The tools for tests look into Tenure: they need its very version."""
    tenure, testing = map(metadata, built.wheels)
    assert (tenure["Name"], testing["Name"]) == ("tenure", "tenure-testing")
    assert tenure["Version"] == testing["Version"]
    assert f"tenure=={tenure['Version']}" in testing.get_all("Requires-Dist", [])


def test_each_wheel_has_its_package_and_nothing_else(built: Built) -> None:
    """Every file of it, scripts of Redis and SQL and the mark of its types included, but for the pages on the code."""
    for folder, wheel in zip(FOLDERS, built.wheels, strict=True):
        source = folder / "src"
        files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
        expected = {name for name in files if "__pycache__" not in name and not name.endswith(".md")}
        assert {name for name in contents(wheel) if ".dist-info/" not in name} == expected
        assert {name.partition("/")[0] for name in expected} == {wheel.name.partition("-")[0]}
        assert any(name.endswith("/py.typed") for name in expected)
    assert {Path(name).suffix for name in contents(built.wheels[0])} >= {".lua", ".sql"}


def test_tenure_brings_no_tools(built: Built) -> None:
    """Neither a plugin that every run of pytest loads, nor a demo."""
    files = contents(built.wheels[0])
    (points,) = (text.decode() for name, text in files.items() if name.endswith("/entry_points.txt"))
    assert re.findall(r"^\[(.*)\]$", points, re.MULTILINE) == ["console_scripts"]
    assert not [name for name in files if re.search(r"test|demo", name)]


def test_tenure_needs_nothing(built: Built) -> None:
    """Each client of a server is an extra, and no extra is for those who work on Tenure."""
    found = metadata(built.wheels[0])
    assert all("; extra == " in each for each in found.get_all("Requires-Dist", []))
    databases = {"dynamodb", "mysql", "nats", "objects", "postgresql", "redis", "zookeeper", "zookeeper-sasl"}
    frameworks = {"celery", "django", "fastapi", "pydantic-ai", "starlette"}
    extras = {"cli", "cron", "mcp", "opentelemetry", "prometheus", "web", *databases, *frameworks}
    assert set(found.get_all("Provides-Extra", [])) == extras


def test_they_say_where_everything_is(built: Built) -> None:
    """The index shows these links beside the description."""
    for wheel in built.wheels:
        urls = dict(each.split(", ") for each in metadata(wheel).get_all("Project-URL", []))
        assert urls.keys() == {"Homepage", "Documentation", "Source", "Changelog", "Issues"}
        assert all(url.startswith(SITE) for url in urls.values())


def test_links_lead_out_of_the_index(built: Built) -> None:
    """A relative link would lead to a page of the index that does not exist; each file is that of this version."""
    for wheel in built.wheels:
        description = metadata(wheel).get_payload()
        assert isinstance(description, str)
        links = re.findall(r"\]\(([^)]+)\)", description)
        assert links
        assert [link for link in links if not link.startswith(("https://", "#"))] == []
    found = metadata(built.wheels[0])
    below = f"{SITE}/blob/v{found['Version']}/"
    of_files = re.findall(rf"\]\({re.escape(below)}([^)#]+)", str(found.get_payload()))
    assert len(of_files) > 10
    assert [path for path in of_files if not (ROOT / path).exists()] == []


def test_old_tools_read_the_metadata(built: Built) -> None:
    """It has no newer version than the licence needs: the index and its uploaders refuse one that they do not know."""
    assert {metadata(wheel)["Metadata-Version"] for wheel in built.wheels} == {"2.4"}


def test_an_sdist_has_no_more_than_it_needs(built: Built) -> None:
    """The source of the package, and what its metadata is made of."""
    tops: set[str] = set()
    for sdist in built.sdists:
        with tarfile.open(sdist) as archive:
            tops |= {member.name.split("/")[1] for member in archive.getmembers() if member.isfile()}
    assert tops == {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "src"}


def test_both_have_the_same_licence() -> None:
    """Each package brings its text."""
    one, other = ((folder / "LICENSE").read_text("utf-8") for folder in FOLDERS)
    assert one == other
