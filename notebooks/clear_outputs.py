"""Take outputs and run counters out of notebooks, so that git holds only what was written by hand.

    python notebooks/clear_outputs.py notebooks/*.ipynb
    git config filter.notebook-without-outputs.clean 'python3 notebooks/clear_outputs.py'

The second form lets git do it by itself (see .gitattributes beside this file): your copy keeps its outputs, what
you commit has none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def cleared(text: str) -> str:
    """The notebook (JSON text) without outputs, run counters and what editors note of a run."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"] = []
            cell["execution_count"] = None
            cell.get("metadata", {}).pop("execution", None)
    notebook["metadata"]["language_info"] = {"name": "python"}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    if len(sys.argv) == 1:
        sys.stdout.write(cleared(sys.stdin.read()))
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(cleared(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
