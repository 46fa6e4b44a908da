"""How often the classifier is right on the collected cases, and whether their clothes matter."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from variants import load_cases, variants_of

from analysis.classify import classify
from analysis.classify.rules import load_rules


@dataclass
class Quality:
    """Counts over the cases that show their cause, and over all their variants."""

    cases: int = 0
    exact: int = 0
    family: int = 0
    phase: int = 0
    negatives: int = 0
    false_alarms: int = 0
    wrong: list[str] = field(default_factory=list)


def quality(prefilter: str = "auto") -> Quality:
    result = Quality()
    for case in load_cases():
        if case.insufficient:
            continue
        verdict = classify({"log": case.log.encode()}, prefilter=prefilter)
        result.cases += 1
        result.exact += verdict.klass == case.klass
        result.family += verdict.klass.split(".")[0] == case.klass.split(".")[0]
        result.phase += case.negative or verdict.phase == case.phase
        result.negatives += case.negative
        result.false_alarms += case.negative and verdict.klass != "none"
        if verdict.klass != case.klass:
            result.wrong.append(f"{case.id}: {case.klass} read as {verdict.klass}")
    return result


@dataclass
class Invariance:
    """Variants whose class is that of the plain log, and the ones whose class is not."""

    variants: int = 0
    same: int = 0
    changed: Counter[str] = field(default_factory=Counter)


def invariance(prefilter: str = "auto") -> Invariance:
    rules = load_rules().rules
    result = Invariance()
    for case in load_cases():
        plain = classify({"log": case.log.encode()}, prefilter=prefilter).klass
        tier = rules[case.klass].tier if case.klass in rules else None
        for name, raw in variants_of(case, tier):
            result.variants += 1
            same = classify({"log": raw}, prefilter=prefilter).klass == plain
            result.same += same
            if not same:
                result.changed[name] += 1
    return result
