#!/bin/sh
# Usage: [PYTHON=interpreter] scripts/venv.sh DIRECTORY GROUP
#
# Makes the virtual environment DIRECTORY, unless there is a working one, and installs this project into it, editable,
# with the dependency group GROUP of pyproject.toml. Run from the top of the project.
set -eu

venv=$1
group=$2

say() { printf '%s\n' "$*" >&2; }

# Interpreters are tried by running them: a name on the PATH may be a stand-in for one that is not installed.
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
can_make_venvs() { "$1" -c 'import ensurepip, venv' >/dev/null 2>&1; }
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }

# Sets `python` to the first interpreter that can make an environment, else `bare` to the first that merely runs.
find_python() {
    python='' bare=''
    for candidate in ${PYTHON:-python3.13 python3.12 python3.11 python3}; do
        is_new_enough "$candidate" || continue
        if can_make_venvs "$candidate"; then
            python=$candidate
            return
        fi
        bare=${bare:-$candidate}
    done
}

explain_and_exit() {
    if [ -n "$bare" ]; then
        version=$(version_of "$bare")
        package=python3-venv
        if [ "$(version_of python3 2>/dev/null)" != "$version" ]; then package=python$version-venv; fi
        say "Python $version ($bare) is here, but it can't make virtual environments. Install what is missing:"
        say ""
        say "    sudo apt-get install $package"
    elif [ -n "${PYTHON:-}" ]; then
        say "PYTHON=$PYTHON does not run, or is older than Python 3.11, which Tenure needs."
    else
        say "Tenure needs Python 3.11 or later, and none of python3.13, python3.12, python3.11, python3 is one."
        say "Install one, or name it: make PYTHON=/path/to/python3.12 ..."
    fi
    exit 1
}

works() { is_new_enough "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }

if ! works; then
    find_python
    [ -n "$python" ] || explain_and_exit
    if [ -e "$venv/pyvenv.cfg" ]; then rm -rf "$venv"; fi # half made, or its interpreter is gone
    say "Making $venv with Python $(version_of "$python") ..."
    "$python" -m venv "$venv"
fi

# The tests need the tools for tests, too.
packages='--editable .'
if [ "$group" = dev ]; then packages="$packages --editable packages/testing"; fi

say "Installing Tenure and what '$group' needs into $venv ..."
pip() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
pip 'pip>=25.1' # the first that knows groups; Python 3.11 to 3.13 bring an earlier one
# shellcheck disable=SC2086 # several words
pip $packages --group "$group"
