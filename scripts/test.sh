#!/usr/bin/env bash
# Install everything that the tests need, and run all checks: lint, format, types, tests.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh

venv=${VENV:-.venv-test}
install_system_package chromium  # the report is opened in it
install_system_package g++       # compiles the stand-in for a GPU
make_venv "$venv" cpu,verify,dev,docs
"$venv/bin/python" -m tests.cuda.environment  # the runtimes' GPU builds, in the user's cache folder
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
"$venv/bin/mkdocs" build --strict --quiet --site-dir "$venv/site"  # its links are checked
"$venv/bin/python" -m pytest --numprocesses 2 --dist worksteal "$@"
