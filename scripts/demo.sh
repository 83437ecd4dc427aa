#!/usr/bin/env bash
# On the CPU: export the bundled tiny checkpoint and generate text; export the trained pair, prove it, decode with drafts.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/venv.sh

venv=${VENV:-.venv-demo}
make_venv "$venv" cpu,verify
"$venv/bin/python" -m builder -i tests/assets/tiny-qwen35 -o demo-out -p fp32 -e cpu
"$venv/bin/python" scripts/generate.py demo-out "Ada found the river." --max-new-tokens 32

pair=tests/assets/pair
"$venv/bin/python" -m builder -i $pair/target -o demo-pair -p bf16 -e cuda \
    --extra_options drafter_path=$pair/dflash2 context_length=1024
"$venv/bin/draftsmith" verify demo-pair --target $pair/target --drafter $pair/dflash2 --report demo-report.html
"$venv/bin/draftsmith" speculate demo-pair --prompts $pair/prompts.txt --max-new-tokens 96 --baseline
