"""Make the repository's `benchmarks` and `tests` importable, as for the unit tests."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
