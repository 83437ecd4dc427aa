# shellcheck shell=bash
# Sourced by the other scripts: make_venv FOLDER EXTRAS makes a virtual environment with this package in it.
# A fresh Debian has Python without the venv module; it is installed where that is so, as is a browser for the tests.

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3}" python3.11 python3.12 python3.13; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    echo "error: Python 3.11 or newer is needed; set PYTHON to its path." >&2
    exit 2
}

install_system_package() {
    command -v "$1" >/dev/null && return
    local sudo=""
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

make_venv() {
    local folder=$1 extras=$2 python root
    root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
    python=$(find_python)
    "$python" -c 'import ensurepip' 2>/dev/null || install_system_package python3-venv
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --constraint "$root/scripts/constraints.txt" --editable "${root}[$extras]"
}
