"""Find the cause of a failed run in its logs, not the loudest line.

``classify`` takes the logs of one run and what else is known of it, and says which class of failure it
is (ids: docs/failures.md), where the evidence stands, and which way to move the swept parameters.
"""

from analysis.classify.classifier import classify, classify_files
from analysis.classify.verdict import Alternative, Line, Note, Verdict
from analysis.classify.witnesses import Witnesses

__all__ = ["Alternative", "Line", "Note", "Verdict", "Witnesses", "classify", "classify_files"]
