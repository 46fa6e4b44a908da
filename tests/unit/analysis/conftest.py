"""Make the repository's `benchmarks` importable: its generator of made results is what these tests use."""

import sys
from pathlib import Path

_ROOT = str(Path(__file__).parents[3])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
