"""Times of log lines, as far as they can be compared over sources.

A time is given in seconds of a year whose number is left out (logs of systemd and vLLM carry none), in
the log's own zone; a zone that is written is applied. Lines of one host compare well; a log without a
zone is taken as UTC where it is compared with unix seconds.
"""

from __future__ import annotations

import re
import time

_MONTHS = {
    name: month
    for month, names in enumerate(
        (
            "jan jän janv ene gen",
            "feb fév fev févr",
            "mar mär mrz mars",
            "apr avr abr avri",
            "may mai maj mag",
            "jun juin giu",
            "jul juil lug",
            "aug août aou ago aoû",
            "sep sept set",
            "oct okt ott",
            "nov",
            "dec dez déc dic",
        ),
        start=1,
    )
    for name in names.split()
}
_NAME = r"[^\W\d_]{3,9}\.?"
STAMP = (
    r"(?:\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?"
    rf"|(?:{_NAME} {{1,2}}\d{{1,2}}|\d{{1,2}} {_NAME}) \d\d:\d\d:\d\d(?:\.\d+)?"
    r"|\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?)"
)
_FULL = re.compile(
    r"(?P<year>\d{4})[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T ](?P<clock>\d\d:\d\d:\d\d)(?P<part>[.,]\d+)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_SHORT = re.compile(r"\b(?P<month>\d\d)-(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_TORCH = re.compile(r"\[[EWIF](?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?")
_NAMED = re.compile(
    rf"(?:(?P<name>{_NAME}) {{1,2}}(?P<day>\d{{1,2}})|(?P<day2>\d{{1,2}}) (?P<name2>{_NAME})) "
    r"(?P<clock>\d\d:\d\d:\d\d)(?P<part>\.\d+)?"
)
_DAYS_BEFORE = (0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335)


def seconds_of(text: str) -> float | None:
    """Seconds since the begin of the year, or None where the text holds no time."""
    if match := _FULL.search(text) or _TORCH.search(text) or _SHORT.search(text):
        groups = match.groupdict()
        return _seconds(int(groups["month"]), int(groups["day"]), groups["clock"], groups["part"]) - _zone(
            groups.get("zone")
        )
    if match := _NAMED.search(text):
        month = _month(match["name"] or match["name2"])
        if month:
            return _seconds(month, int(match["day"] or match["day2"]), match["clock"], match["part"])
    return None


def seconds_of_unix(unix_s: float) -> float:
    """The same scale for unix seconds."""
    moment = time.gmtime(unix_s)
    clock = f"{moment.tm_hour:02}:{moment.tm_min:02}:{moment.tm_sec:02}"
    return _seconds(moment.tm_mon, moment.tm_mday, clock, None) + unix_s % 1


def _month(name: str) -> int:
    short = name.rstrip(".").lower()
    return next((_MONTHS[short[:size]] for size in (5, 4, 3) if short[:size] in _MONTHS), 0)


def _seconds(month: int, day: int, clock: str, part: str | None) -> float:
    if not 1 <= month <= 12:
        return 0.0
    hours, minutes, seconds = (int(field) for field in clock.split(":"))
    fraction = float(f"0.{part[1:]}") if part else 0.0
    return (_DAYS_BEFORE[month - 1] + day) * 86400.0 + hours * 3600 + minutes * 60 + seconds + fraction


def _zone(zone: str | None) -> float:
    if not zone or zone == "Z":
        return 0.0
    sign = -1 if zone[0] == "-" else 1
    digits = zone[1:].replace(":", "")
    return sign * (int(digits[:2]) * 3600.0 + int(digits[2:]) * 60.0)
