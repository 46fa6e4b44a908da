"""One short generation, with the standard library: proof that a server answers."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from . import paths

#: What stands for the prompt in a body's template.
PLACEHOLDER = "\0prompt\0"
#: Repeats itself, so that even an n-gram drafter has something to draft.
PROMPT = "one two three four five six seven eight nine ten\n" * 6 + "one two three"


def with_prompt(template: Any, prompt: str) -> Any:
    """The request's body with the prompt in its place."""
    if isinstance(template, str):
        return template.replace(PLACEHOLDER, prompt)
    if isinstance(template, dict):
        return {key: with_prompt(value, prompt) for key, value in template.items()}
    if isinstance(template, list):
        return [with_prompt(value, prompt) for value in template]
    return template


class Refused(Exception):
    """The server answered, but not with a generation; the message says what it answered."""


#: Never through a proxy: the engine is on this host.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def get(url: str, timeout_s: float, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """(status, body) of a GET; an HTTP error is an answer.  OSError when nobody answers."""
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None
    except http.client.HTTPException as error:
        raise OSError(_no_http(error)) from None


def _no_http(error: http.client.HTTPException) -> str:
    """What listens speaks no HTTP, or hung up in the middle."""
    return f"no whole HTTP answer ({type(error).__name__}: {str(error)[:100]!r})"


def events(stream: Any) -> Iterator[dict[str, Any]]:
    """JSON objects of a server-sent event stream, until [DONE]."""
    for raw in stream:
        line = raw.strip()
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = json.loads(data)
            if isinstance(event, dict):
                yield event


def merge(into: dict[str, Any], event: dict[str, Any]) -> None:
    """Keep the latest value of every key; a later event without a key does not erase it."""
    for key, value in event.items():
        if value is None or (isinstance(value, list) and not value and into.get(key)):
            continue
        into[key] = value


def generate(
    url: str, dialect: dict[str, Any], body: dict[str, Any], timeout_s: float, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Post one generation and read it to its end.

    Returns text, output_tokens and drafted_tokens (None where the engine does not say).  Raises OSError when
    nobody answers and Refused when the answer is no generation.
    """
    request = urllib.request.Request(
        url + dialect["path"],
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Connection": "close", **(headers or {})},
    )
    text, last = "", {}  # type: ignore[var-annotated]
    try:
        with _OPENER.open(request, timeout=timeout_s) as answer:
            for event in events(answer):
                error = paths.first(event, dialect["error"])
                if error:
                    raise Refused(f"an error inside the stream: {str(error)[:300]}")
                piece = paths.first(event, dialect["text"]) or ""
                if not isinstance(piece, str):
                    raise Refused(f"the text is none: {str(piece)[:100]}")
                text = piece if dialect.get("text_is_cumulative") else text + piece
                merge(last, event)
    except urllib.error.HTTPError as error:
        with error:
            raise Refused("HTTP %d: %s" % (error.code, error.read()[:300].decode(errors="replace"))) from None
    except urllib.error.URLError as error:
        raise OSError(str(error.reason)) from None
    except http.client.HTTPException as error:
        raise OSError(_no_http(error)) from None
    except ValueError as error:
        raise Refused(f"not an event stream: {error}") from None
    if not text:
        raise Refused("HTTP 200 with an empty text")
    ends = dialect.get("finish_reason")
    if ends and paths.first(last, ends) is None:
        # http.client takes a connection that breaks between two chunks for the end.
        raise Refused("the stream ended before the answer did: no finish reason came")
    tokens = paths.first(last, dialect.get("output_tokens", []))
    drafted = paths.first(last, dialect.get("drafted_tokens", []))
    return {"text": text, "output_tokens": tokens, "drafted_tokens": drafted}
