# To be sourced, with the checkout as the working directory: makes .venv and installs
# requirements.txt in it, unless that was done before, and sets $python to its interpreter.
# shellcheck shell=sh

python=.venv/bin/python

# Some systems ship Python without what a virtual environment needs, some ship a command of that
# name that only says that the version is not installed.
is_suitable() {
    "$1" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12 python3.11 python3}; do
        if is_suitable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "Python 3.11 or newer with its venv module is needed (on Debian and Ubuntu: the package" \
        "python3-venv). Name another one with PYTHON=/path/to/python." >&2
    return 1
}

version_of() {
    "$1" -c 'import sys; print(sys.version)' 2>/dev/null
}

# Whether .venv works, and is of the Python that was asked for, if one was.
has_venv() {
    version_of "$python" >/dev/null || return 1
    [ -z "${PYTHON:-}" ] || [ "$(version_of "$PYTHON")" = "$(version_of "$python")" ]
}

# .venv/installed is a copy of the requirements, written last: an installation that was broken off
# begins again.
bootstrap() {
    if has_venv && cmp -s requirements.txt .venv/installed; then
        return
    fi
    if ! has_venv || [ ! -e .venv/installed ]; then
        base=$(find_python) || return 1
        echo "Making .venv with $("$base" --version) ..."
        "$base" -m venv --clear .venv || return 1
    fi
    echo "Installing requirements.txt (this takes some minutes) ..."
    rm -f .venv/installed
    "$python" -m pip install --quiet --disable-pip-version-check -r requirements.txt || return 1
    cp requirements.txt .venv/installed
}
