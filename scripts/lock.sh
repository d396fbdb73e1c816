#!/usr/bin/env bash
# Writes requirements.lock anew from pyproject.toml: one pinned version of every package, for Python 3.10 to 3.12.
# Run it after changing the dependencies; it makes a virtual environment with uv in a temporary folder and removes it.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/.."

scratch=$(mktemp -d)
trap 'rm -rf -- "$scratch"' EXIT
python3 -m venv "$scratch/venv"
"$scratch/venv/bin/pip" install --quiet --disable-pip-version-check uv

# setuptools builds the project itself (no build isolation), so it is pinned with the rest; pip installs them.
# torch is held at the release the examples and the zoo of test models were exported and checked with.
printf 'setuptools>=77\npip>=25\n' >"$scratch/build.in"
printf 'torch==2.13.0\n' >"$scratch/held.txt"
"$scratch/venv/bin/uv" pip compile --quiet --universal --python-version 3.10 --all-extras \
    --no-header --no-annotate --constraint "$scratch/held.txt" --output-file "$scratch/lock.txt" \
    pyproject.toml "$scratch/build.in"

{
    echo "# pip constraints: the version of every package that ./run.sh installs. Made by scripts/lock.sh; do not edit."
    echo "# The CUDA libraries of torch are left out: which of them belong to it, torch's own metadata says exactly."
    grep -Ev '^(nvidia-|cuda-|triton==)' "$scratch/lock.txt"
} >requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) pins"
