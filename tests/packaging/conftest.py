"""The packages, built and installed once for all tests: no test needs a network."""

import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT, ROOT / "packages" / "testing")
"""Where the packages are."""

OF_PYTEST = ("_pytest", "py.py", "pytest", "pytest-*", "pluggy*", "iniconfig*", "packaging*", "pygments*")
"""What pytest consists of, in the folder of installed packages."""

PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
TEST_TIMEOUT = 240.0


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """Run a program, and return what it prints. Fails the test if the program fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=TEST_TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@dataclass(frozen=True)
class Built:
    """The built packages; the first of each is `tenure`, the second `tenure-testing`."""

    wheels: list[Path]
    sdists: list[Path]
    wheels_of_sdists: list[Path]


def make_wheels(folder: Path, *sources: Path) -> list[Path]:
    """Make wheels of some folders or sdists, with the tools that are installed here."""
    run(*PIP, "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, *sources)
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build both packages."""
    top = tmp_path_factory.mktemp("built")
    for folder in FOLDERS:
        run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", top / "sdists", cwd=folder)
    sdists = sorted((top / "sdists").iterdir())
    return Built(make_wheels(top / "wheels", *FOLDERS), sdists, make_wheels(top / "again", *sdists))


@dataclass(frozen=True)
class Environment:
    """A virtual environment, without anything that is installed here."""

    folder: Path

    @property
    def packages(self) -> Path:
        """The folder of installed packages."""
        paths = {"base": str(self.folder), "platbase": str(self.folder)}
        return Path(sysconfig.get_path("purelib", "venv", paths))

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs, in its folder."""
        path = Path(sysconfig.get_path("scripts", "venv", {"base": str(self.folder)}), program)
        return subprocess.run(
            [path, *arguments],
            cwd=self.folder,
            env={},
            capture_output=True,
            text=True,
            timeout=TEST_TIMEOUT,
            check=False,
        )

    def install(self, *packages: str | Path) -> None:
        """Install packages, with what they depend on, from a folder of wheels."""
        run(*PIP, "--python", self.folder, "install", "--no-index", "--no-compile", *packages)


@pytest.fixture(scope="session")
def bare(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment that has the package `tenure` alone."""
    environment = Environment(tmp_path_factory.mktemp("bare"))
    venv.create(environment.folder)
    environment.install(built.wheels[0])
    return environment


@pytest.fixture(scope="session")
def beside_pytest(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Make an environment that has pytest, and in which somebody then installs `tenure-testing`."""
    environment = Environment(tmp_path_factory.mktemp("testing"))
    venv.create(environment.folder)
    for pattern in OF_PYTEST:
        for path in Path(sysconfig.get_path("purelib")).glob(pattern):
            (environment.packages / path.name).symlink_to(path)
    environment.install("--find-links", built.wheels[0].parent, "tenure-testing")
    return environment
