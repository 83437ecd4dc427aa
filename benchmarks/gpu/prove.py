"""draftsmith verify --provider cuda with its checks as JSON: prove.py EXPORT TARGET DRAFTER; status 0 if it passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from draftsmith.cuda_runtime import check_cuda
from draftsmith.environment import needs_reference


def main() -> int:
    """Prove it and print the checks.

    Raises:
        ExportError: It cannot be done here.
    """
    check_cuda()
    needs_reference()
    from draftsmith.verify.checks import Results, Verdict
    from draftsmith.verify.run import verify

    results = Results(lambda check: print(check, file=sys.stderr))
    verify(*map(Path, sys.argv[1:4]), results, provider="cuda")
    checks = [check.as_json() for check in results.checks]
    print(json.dumps({"verdict": results.verdict.value, "summary": results.summary(), "checks": checks}))
    return 0 if results.verdict is Verdict.PASSED else 1


if __name__ == "__main__":
    sys.exit(main())
