"""Options and help: one spelling, said by the magics themselves."""

from __future__ import annotations

import pytest

from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.options import PARSERS, init_parser

from .kernel import Kernel
from .samples import MODEL, TRAIN, TRAINED

pytestmark = pytest.mark.process


@pytest.mark.parametrize(
    ("magic", "told"),
    [
        ("%tpu_check", ["--ready"]),
        ("%%tpu_check", ["--fix"]),
        ("%tpu_doctor", ["--fix"]),
        ("%tpu_init", ["-n", "--processes", "--precision", "bf16-downcast", "--framework", "--checkpoints"]),
        ("%tpu_pad", ["LENGTHS"]),
        ("%tpu_panel", ["RUN"]),
        ("%tpu_pod", ["--target"]),
        ("%tpu_preflight", ["--target", "--fit NAME", "--precision", "--plain", "-o NAME", "--anew"]),
        (
            "%tpu_train",
            [
                "FUNCTION",
                "--jit",
                "--keep-partial",
                "--background",
                "--timeout",
                "--tensorboard DIR",
                "%tpu_train train.py --epochs 2",
            ],
        ),
        (
            "%%tpu_train",
            ["ARG", "--steps", "--hoist", "-o", "--run-name", "--resume", "--save-every T", "--retries N"],
        ),
        ("%tpu_runs", ["RUN", "--plain", "--csv FILE", "%tpu_runs --all --csv runs.csv"]),
        ("%tpu_logs", ["-r", "--rank", "RUN"]),
        ("%tpu_stop", ["RUN", "--save"]),
    ],
)
def test_help_and_docstring_come_from_one_place(kernel: Kernel, magic: str, told: list[str]) -> None:
    for option in ("-h", "--help"):
        helped = kernel.run(f"{magic} {option}").good().printed
        assert helped.startswith(f"usage: {magic} ") and not [word for word in told if word not in helped]
    body = "\ndef f(): raise SystemError" if magic.startswith("%%") else ""
    assert kernel.run(f"{magic} -h{body}").good().printed == helped
    kind = "cell" if magic.startswith("%%") else "line"
    doc = kernel.value(f"get_ipython().find_magic({magic.lstrip('%')!r}, {kind!r}).__doc__")
    assert doc.endswith(helped.removesuffix("\n"))
    assert doc.startswith("usage: %%" if f"%{magic}" in PARSERS else "usage: ")


@pytest.mark.parametrize("words", [["--tpu", "my-node"], ["--tpu=grpc://10.0.0.2:8470"], ["--tpu", "local"]])
def test_init_refuses_the_tpu_nodes_of_old_notebooks(words: list[str]) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        init_parser().read(["--framework", "tensorflow", *words])
    name = words[-1].removeprefix("--tpu=")
    assert caught.value.what == f"%tpu_init no longer has --tpu {name}: a TPU cannot be reached by name or address."
    assert caught.value.why == "Those were TPU nodes, which Google discontinued in April 2025."
    assert "on the TPU VM itself" in caught.value.todo and "without --tpu" in caught.value.todo
    assert "--tpu" not in init_parser().options and "--tpu " not in init_parser().format_help()


def test_options_may_stand_anywhere(kernel: Kernel) -> None:
    kernel.run(MODEL + TRAIN).good()
    cell = kernel.run("%tpu_train --run-name first train -o mine model --timeout 60 steps=2 --hoist=off").good()
    assert "first: done; updated in the notebook: model" in cell.printed
    assert "\nSteps 2 · " in cell.panel[-1].text
    assert kernel.value(f"(mine.run.name, mine.run.info['plan']['timeout'], {TRAINED})") == ("first", 60.0, True)
    assert kernel.value("'_tpu' in globals()") is False


def test_an_arg_that_begins_with_a_minus_stands_in_brackets(kernel: Kernel) -> None:
    kernel.run("def given(*args): return args").good()
    kernel.run('%tpu_train given (-1) "(-2.5)" -- -3').good()
    assert kernel.value("_tpu.value") == (-1, -2.5, -3)
    refused = kernel.run("%tpu_train given -x")
    assert 'Write an ARG that begins with a minus in parentheses: "(-x)"' in refused.said


def test_processes_of_this_host(kernel: Kernel) -> None:
    kernel.run("def given(): return 1").good()
    kernel.run("%tpu_train given -n 1").good()
    kernel.run("%tpu_train given -n 2").good()
    assert kernel.value("(_tpu.values, _tpu.run.info['plan']['rehearsed'])") == ([1, 1], True)


def test_precision_reaches_the_worker(kernel: Kernel) -> None:
    kernel.run(
        "import os\ndef given(): return os.environ.get('XLA_USE_BF16'), os.environ.get('XLA_DOWNCAST_BF16')"
    ).good()
    values = []
    for precision in ("fp32", "bf16", "bf16-downcast"):
        kernel.run(f"%tpu_train given --precision {precision}").good()
        values.append(kernel.value("_tpu.value"))
    assert values == [(None, None), ("1", None), (None, "1")]
    assert kernel.value("os.environ.get('XLA_USE_BF16')") is None


def test_a_typo_in_any_magic_is_answered_with_the_nearest(kernel: Kernel) -> None:
    for line, near in (
        ("%tpu_doctor --fixx", "--fix"),
        ("%tpu_init --proceses 2", "--processes"),
        ("%tpu_init --precison bf16", "--precision"),
        ("%tpu_pad lengths --bucket 4", "--buckets"),
        ("%tpu_pod --targt v4-8", "--target"),
        ("%tpu_train f --backgroud", "--background"),
        ("%tpu_runs --plan", "--plain"),
        ("%tpu_logs --rang 1", "--rank"),
    ):
        typo = next(word for word in line.split() if word.startswith("--"))
        said = f"TpuMagicsError: {line.split()[0]} has no option {typo}; did you mean {near}?"
        assert kernel.run(line).error.startswith(said), line
    refused = kernel.run("%tpu_panel --live")
    assert refused.error_type == "TpuMagicsError" and "%tpu_panel" in refused.said
