"""docs/failures.md is generated, and kept."""

from analysis.classify.document import DOCUMENT, document


def test_the_document_is_current() -> None:
    assert DOCUMENT.read_text(encoding="utf-8") == document(), "run python -m analysis.classify.document"
