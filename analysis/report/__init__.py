"""The report that people read: `python -m analysis.report RESULTS`."""
