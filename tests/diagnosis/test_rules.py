"""Every rule's own examples, and what is said of rules that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpualert.diagnosis import Facts, Rulebook, RuleError, diagnose, literals

RULES = Rulebook.load()


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.id)
def test_a_rule_matches_its_examples_and_nothing_that_it_must_not(rule: object) -> None:
    from gpualert.diagnosis.rulebook import Rule

    assert isinstance(rule, Rule)
    assert rule.positive
    for line in rule.positive:
        assert rule in RULES.matches(line), line
        assert RULES.trigger.search(line.encode()), f"the quick scan passes over {line!r}"
    for line in rule.negative:
        assert rule not in RULES.matches(line), line


def test_every_class_says_what_it_means_and_what_to_do() -> None:
    for cls in RULES.classes.values():
        assert cls.meaning
        assert cls.advice or cls.name == "success"
        assert cls.family


def _load(tmp_path: Path, text: str) -> Rulebook:
    (tmp_path / "mine.toml").write_text(text)
    return Rulebook.load((str(tmp_path),))


OWN = """
[class.license_server]
family = "code"
meaning = "The licence server refused."
advice = ["call the licence desk"]

[[rule]]
id = "mine.license"
class = "license_server"
pattern = 'LicenseError: (?P<what>.+)'
summary = "no licence: {what}"
positive = ["LicenseError: pool empty"]
"""


def test_a_users_own_rule_adds_a_class(tmp_path: Path) -> None:
    answer = diagnose(b"step 1\nLicenseError: pool empty\n", Facts(exit_code=1), rules=_load(tmp_path, OWN))
    assert (answer.cls, answer.summary, answer.suggestions) == (
        "license_server", "no licence: pool empty", ("call the licence desk",),
    )  # fmt: skip


def test_a_users_own_class_overrides_advice(tmp_path: Path) -> None:
    rules = _load(tmp_path, '[class.div_zero]\nfamily = "code"\nmeaning = "x"\nadvice = ["ask the team"]\n')
    assert diagnose(b"ZeroDivisionError: x\n", Facts(exit_code=1), rules=rules).suggestions == ("ask the team",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]]\nid = 'a'\n", "rule a: class is missing"),
        ("[[rule]]\nid='a'\nclass='nope'\npattern='abcdef'\n", "class 'nope' is unknown"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='(abc'\n", "pattern: is not a valid pattern"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='(?=abc)abc'\n", "pattern: is not a valid pattern"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='.*'\n", "needs some fixed text"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='abcdef'\ncolour='red'\n", "unknown key 'colour'"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='abcdef'\nlevel='huge'\n", "level must be one of"),
        ("[[rule]]\nid='a'\nclass='hang'\npattern='abcdef'\npositive='x'\n", "positive must be a list of texts"),
        ("[class.x]\nmeaning='m'\n", "family is missing"),
        ("[rule\n", "is not valid TOML"),
    ],
)
def test_a_bad_rule_file_is_refused_with_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(RuleError, match=r".*") as caught:
        _load(tmp_path, text)
    assert str(tmp_path / "mine.toml") in str(caught.value)
    assert message in str(caught.value)


def test_a_missing_directory_is_named() -> None:
    with pytest.raises(RuleError, match="/no/such/place: cannot be read"):
        Rulebook.load(("/no/such/place",))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("CUDA out of memory", ["CUDA out of memory"]),
        ("(?:abcd|efgh)x", ["abcd", "efgh"]),
        ("a+bcd", ["bcd"]),
        ("(abc)?", None),
        ("[abc]+", None),
        ("(?:abc|.)", None),
    ],
)
def test_the_fixed_text_of_a_pattern(pattern: str, words: list[str] | None) -> None:
    assert literals.required(pattern) == words


def test_a_lookup_tells_what_a_number_means() -> None:
    answer = diagnose(b"NVRM: Xid (PCI:0000:5e:00): 62, pid=101, name=python, 2027(24f4)\n", Facts(exit_code=1))
    assert answer.summary == "Xid 62 from the NVIDIA driver: internal micro-controller halt"
    assert answer.node_suspect
    answer = diagnose(b"NVRM: Xid (PCI:0000:5e:00): 777, pid=101\n", Facts(exit_code=1))
    assert answer.summary == "Xid 777 from the NVIDIA driver"
