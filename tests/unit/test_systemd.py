"""Quoting for systemd, read back by an independent parser of the documented rules."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specsweep.systemd import environment_file, quote

#: systemd.syntax(7), "Quoting": C-style escapes that are known inside quotes.
ESCAPES = {"\\": "\\", '"': '"', "'": "'", "n": "\n", "t": "\t", "r": "\r", "s": " ", "a": "\a", "b": "\b", "f": "\f",
           "v": "\v"}  # fmt: skip
SPECIFIERS = "aAbBCdDEfgGhHiIjJJlLmMnNopPqrsStTuUvVwWyYz"


def exec_words(line: str) -> list[str]:
    """Arguments of an ExecStart= line: quotes and escapes first, then specifiers, then variables."""
    words: list[str] = []
    place = 0
    while place < len(line):
        if line[place] in " \t":
            place += 1
            continue
        assert line[place] == '"', f"not quoted at {place}: {line!r}"
        place += 1
        word = ""
        while line[place] != '"':
            if line[place] == "\\":
                word += ESCAPES[line[place + 1]]
                place += 2
            else:
                assert line[place] not in "\n\r", "a raw line break ends the line of a unit file"
                word += line[place]
                place += 1
        place += 1
        assert place == len(line) or line[place] in " \t", "text behind a closing quote"
        words.append(_without(_without(word, "%", SPECIFIERS), "$", None))
    return words


def _without(text: str, sign: str, known: str | None) -> str:
    """`%%` and `$$` stand for one sign; anything else that starts with it would be replaced."""
    out, place = "", 0
    while place < len(text):
        if text[place] != sign:
            out += text[place]
            place += 1
            continue
        assert text[place + 1 : place + 2] == sign, f"{text[place : place + 2]!r} would be replaced ({known})"
        out += sign
        place += 2
    return out


def environment_values(text: str) -> dict[str, str]:
    """Variables of an EnvironmentFile= (systemd.exec(5)): double quotes, in which \\ escapes \\ " ` $ only."""
    found: dict[str, str] = {}
    place = 0
    while place < len(text):
        equals = text.index("=", place)
        name = text[place:equals]
        assert text[equals + 1] == '"'
        place, value = equals + 2, ""
        while text[place] != '"':
            if text[place] == "\\":
                following = text[place + 1]
                value += following if following in '\\"`$' else "" if following == "\n" else "\\" + following
                place += 2
            else:
                value += text[place]
                place += 1
        assert text[place + 1] == "\n"
        place += 2
        found[name] = value
    return found


#: What a command line or a variable can hold at all: no NUL, and text that is valid UTF-8.
_text = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=40) | st.text(
    alphabet="%$\\\"'`{}[]:;, \n\t\ri=#nax0", max_size=30
)


@settings(derandomize=True, deadline=None, max_examples=300, database=None)
@given(st.lists(_text, max_size=5))
@example(["--x={'a': \"b\"}", "%i", "$HOME", "${HOME}", ";", "", "\\", "a\nb", "100%", "\\n", "# no comment", " "])
def test_arguments_come_back_as_they_were(arguments: list[str]) -> None:
    assert exec_words(" ".join(map(quote, arguments))) == arguments


@settings(derandomize=True, deadline=None, max_examples=300, database=None)
@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True), _text, max_size=4))
@example({"A": "%n$B`c`\\\"'\n", "B": "", "C": "\\", "D": "a\\\nb"})
def test_environment_values_come_back_as_they_were(variables: dict[str, str]) -> None:
    assert environment_values(environment_file(variables)) == variables


def test_the_parser_of_this_test_sees_what_is_not_quoted() -> None:
    for bad in ('"%i"', '"$HOME"', '"a"b', "a", '"a\nb"'):
        with pytest.raises((AssertionError, IndexError)):
            exec_words(bad)
