#!/usr/bin/env bash
# Export the bundled tiny checkpoint, alone and with a drafter, and generate text in onnxruntime-genai, on the CPU.
# The checkpoint has random weights: the text is noise, the path is the real one.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh

venv=${VENV:-.venv-demo}
make_venv "$venv" cpu
"$venv/bin/python" -m builder -i tests/assets/tiny-qwen35 -o demo-out -p fp32 -e cpu
"$venv/bin/python" scripts/make_tiny_drafter.py dflash2 demo-drafter
"$venv/bin/python" -m builder -i tests/assets/tiny-qwen35 -o demo-out-drafter -p bf16 -e cuda \
    --extra_options drafter_path=demo-drafter
"$venv/bin/python" scripts/generate.py demo-out "Ada found the river." --max-new-tokens 32
