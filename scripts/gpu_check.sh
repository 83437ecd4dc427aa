#!/usr/bin/env bash
# Prove and time exports on the GPU of this machine, in under eight minutes: gpu_check.sh [OUT.json] [--quick]
# On a bare machine with Python 3.11 or newer and NVIDIA's driver 580 or newer, and 50 GB of disk. WHEELS=DIR installs from
# a folder of wheels, without a network; PYTHON=PATH names the Python that makes the environment. docs/cuda.md says what
# is in OUT.json.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh

out=gpu-check.json
if [ $# -gt 0 ] && [ "${1#--}" = "$1" ]; then
    out=$1
    shift
fi
exec "$(find_python)" -m benchmarks.gpu.check "$out" ${WHEELS:+--wheels "$WHEELS"} "$@"
