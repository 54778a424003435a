"""ARGs: words of a line, expressions of the notebook."""

from __future__ import annotations

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import cell


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  model   16 ", ["model", "16"]),
        ('m1 16 "cfg.lr * 2"', ["m1", "16", "cfg.lr * 2"]),
        ("m [1, 2] {'a': 1} f(1, 2) (3, 4)", ["m", "[1, 2]", "{'a': 1}", "f(1, 2)", "(3, 4)"]),
        ("key='a b' other=[1, 2]", ["key=a b", "other=[1, 2]"]),
        ("\"'text with spaces'\"", ["'text with spaces'"]),
        ("'a'+'b'", ["'a'+'b'"]),
        ("d['a b'] x", ["d['a b']", "x"]),
        ("--steps 5 model", ["--steps", "5", "model"]),
        ("f('(') x", ["f('(')", "x"]),
        ("a)b c", ["a)b", "c"]),
        ("\tm\tn", ["m", "n"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    assert cell.split_words(line) == words


@pytest.mark.parametrize(("line", "word"), [("f('a", "quote '"), ("[1, 2", "bracket"), ('"x', 'quote "')])
def test_what_is_never_closed(line: str, word: str) -> None:
    with pytest.raises(TpuMagicsError, match=word) as caught:
        cell.split_words(line)
    assert line in caught.value.why


def test_positional_and_named() -> None:
    assert cell.parse_arguments(["m", "1 + 1", "a == b", "lr=0.1", "f=x==y"]) == (
        ["m", "1 + 1", "a == b"],
        {"lr": "0.1", "f": "x==y"},
    )
    with pytest.raises(TpuMagicsError, match="follows a keyword ARG"):
        cell.parse_arguments(["a=1", "m"])
    for word in ("1 +", "a b", "lr=", "x=1 +", "def", "print 'x'"):
        with pytest.raises(TpuMagicsError, match="is not a Python expression"):
            cell.parse_arguments([word])


def test_values() -> None:
    space = {"cfg": {"lr": 0.5}, "n": 2}
    assert cell.evaluate_all(["cfg['lr']", "[n for _ in range(n)]"], {"k": "n * 2"}, space) == (
        [0.5, [2, 2]],
        {"k": 4},
    )
    with pytest.raises(TpuMagicsError, match="NameError") as caught:
        cell.evaluate("bert", space)
    assert "Define `bert` in an earlier cell; for a string, write \"'bert'\"" in caught.value.todo
    with pytest.raises(TpuMagicsError, match="KeyError") as caught:
        cell.evaluate("cfg['epochs']", space)
    assert "Fix the expression" in caught.value.todo
    assert isinstance(caught.value.__cause__, KeyError)
