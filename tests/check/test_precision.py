"""The group `precision`: programs without findings, and that torch behaves as the rules say."""

from __future__ import annotations

import pytest

from tests.check.group_checks import GroupChecks
from tests.check.measurements import measurements
from tpu_magics.check import check_cells, check_text
from tpu_magics.check.cells import cell_of
from tpu_magics.check.rules.precision import RULES

codes = GroupChecks(RULES).codes


@pytest.mark.parametrize("value", ['"1"', "1", '"true"', "str(1)", "str(int(flag))", '"1" if flag else "0"', "flag"])
def test_what_may_switch_it_on_is_found(value: str) -> None:
    assert codes(f'import os\n\n\ndef f(flag):\n    os.environ["XLA_USE_BF16"] = {value}') == ["TPU501"]


@pytest.mark.parametrize("value", ['"0"', "str(0)", '"false"', '""', 'os.environ.get("MINE", "0")', "saved"])
def test_what_switches_it_off_or_puts_it_back_is_not(value: str) -> None:
    text = f'import os\n\nsaved = os.environ.get("XLA_USE_BF16", "0")\nos.environ["XLA_USE_BF16"] = {value}'
    assert codes(text) == []


def test_the_level_is_kept_in_the_fix() -> None:
    text = 'import os\nos.environ["XLA_USE_BF16"] = "1"\nos.environ["XLA_DOWNCAST_BF16"] = "1"\n'
    first, second = check_text(text, "x.py", RULES)
    assert "--precision bf16`" in first.fix
    assert "--precision bf16-downcast`" in second.fix


def test_a_variable_is_found_once_however_it_is_passed_on() -> None:
    assert codes('import os\n\nextra = {"XLA_USE_BF16": "1"}\nos.environ.update(extra)') == ["TPU501"]


def test_the_place_of_a_magic_is_its_line() -> None:
    (finding,) = check_cells([cell_of("%load_ext tpu_magics\n%env XLA_USE_BF16=1\n", "In [2]")], RULES)
    assert (finding.place, finding.source) == ("In [2], line 2", "%env XLA_USE_BF16=1")


SCALED = """
    import torch
    {imports}

    def train(model, loader):
        {device}
        scaler = torch.cuda.amp.GradScaler()
        for x, y in loader:
            loss = model(x.to(device), y)
            scaler.scale(loss).backward()
    """


@pytest.mark.parametrize(
    ("imports", "device", "expected"),
    [
        ("", "", ["TPU502"]),
        ("import accelerate", "", ["TPU502"]),
        ("import torch_xla", "device = torch_xla.device()", ["TPU502"]),
        ("import torch_xla", 'device = torch.device("cuda")', ["TPU502"]),
        ("from accelerate import Accelerator", 'device = torch.device("cuda")', ["TPU502"]),
        ("from transformers import TrainingArguments", 'device = TrainingArguments("o"), model.cuda()', ["TPU502"]),
        ("", 'device = torch.device("cuda" if torch.cuda.is_available() else "cpu")', ["TPU502"]),
        ("", 'device = torch.device("cuda")', []),
        ("", 'device = torch.device("cuda:0")', []),
        ("", "model = model.cuda()", []),
    ],
)
def test_only_a_program_that_is_for_a_gpu_alone_is_left_alone(imports: str, device: str, expected: list[str]) -> None:
    assert codes(SCALED.format(imports=imports, device=device)) == expected


def test_the_end_of_a_chain_of_other_devices_is_for_a_gpu() -> None:
    text = """
        import torch
        import torch_xla

        def scaler_of(kinds):
            if is_npu_available():
                return torch.amp.GradScaler("npu")
            elif is_xpu_available():
                return torch.amp.GradScaler("xpu")
            else:
                return torch.amp.GradScaler("cuda")
        """
    assert codes(text) == []
    assert codes(text.replace("is_npu_available", "is_main").replace("is_xpu_available", "is_last")) == ["TPU502"]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("torch.cuda.is_available()", []),
        ('device.type == "cuda"', []),
        ("not use_tpu", []),
        ("use_tpu", ["TPU502"]),
        ("not torch.cuda.is_available()", ["TPU502"]),
        ("args.fp16", []),
        ('precision == "16-mixed"', []),
        ("args.scale", ["TPU502"]),
    ],
)
def test_a_condition_that_asks_for_a_gpu_or_for_float16_is_heeded(test: str, expected: list[str]) -> None:
    text = f"""
        import torch
        import torch_xla

        def scaler_of(device, use_tpu, args, precision):
            if {test}:
                return torch.cuda.amp.GradScaler()
            return None
        """
    assert codes(text) == expected


def test_half_of_other_things_is_their_own_business() -> None:
    assert codes("from fractions import Fraction\nimport torch_xla\n\nx = Fraction(1, 2).half(1)") == []


MEASURED = """
import json, torch, torch_xla
device = torch_xla.device()
x = torch.randn(4, 4, device=device)
found = {}
for name, dtype in (("cuda", None), ("xla", torch.bfloat16)):
    with torch.autocast(name, dtype=dtype):
        found[name] = str((x @ x).dtype)
scaler = torch.amp.GradScaler("cuda")
found["scale"] = scaler.scale(torch.ones(1, device=device)).item()
print("FOUND", json.dumps(found))
"""


@pytest.mark.process
def test_autocast_for_cuda_leaves_xla_in_float32_and_the_scaler_scales() -> None:
    """The reasons that TPU502 gives, as measured on XLA:CPU."""
    pytest.importorskip("torch_xla")
    found = measurements(MEASURED)
    assert found == {"cuda": "torch.float32", "xla": "torch.bfloat16", "scale": 65536.0}


# The accelerate guide's own form: the precision is an argument of the launched function.
HANDED = """
import torch_xla, tpu_magics
import torch_xla.distributed.xla_multiprocessing as xmp
from accelerate import Accelerator, notebook_launcher


def {function}:
    {first}
    return Accelerator(mixed_precision=mixed_precision)
"""
LOOP, MP = 'loop(mixed_precision="fp16", seed=42)', "mp(index, mixed_precision)"


@pytest.mark.parametrize(
    ("function", "start", "found"),
    [
        (LOOP, "", True),
        (LOOP, "notebook_launcher(loop, num_processes=8)", True),
        (LOOP, 'notebook_launcher(loop, ("fp16", 42), num_processes=8)', True),
        (LOOP, 'args = ("fp16", 42)\nnotebook_launcher(loop, args=args)', True),
        (LOOP, 'notebook_launcher(loop, ("bf16", 42))', False),
        (LOOP, "notebook_launcher(loop, read())", False),
        (LOOP, "loop(seed=1)", True),
        (LOOP, 'loop("bf16")', False),
        (LOOP, 'loop(mixed_precision="bf16")', False),
        (LOOP, "loop(**read())", False),
        (LOOP, 'tpu_magics.train(loop, "bf16")', False),
        (LOOP, 'tpu_magics.train(loop, "fp16", 42, plain=True)', True),
        (LOOP, "tpu_magics.train(loop, steps=3)", True),
        (LOOP, "tpu_magics.train(loop, *read())", False),
        (MP, "", False),
        (MP, 'xmp.spawn(mp, args=("fp16",))', True),
        (MP, 'xmp.spawn(mp, args=("bf16",))', False),
        (MP, 'torch_xla.launch(mp, args=("fp16",))', True),
        (MP, "xmp.spawn(mp)", False),
    ],
)
def test_a_precision_that_is_handed_over_is_known(function: str, start: str, found: bool) -> None:
    text = HANDED.format(function=function, first="pass") + start
    assert codes(text) == ["TPU502"] * found
    assert codes(text.replace("pass", 'mixed_precision = "no"')) == []


@pytest.mark.parametrize(("words", "found"), [("", True), ("--plain", True), ('"bf16"', False)])
def test_of_a_magic_the_words_count(words: str, found: bool) -> None:
    text = HANDED.format(function=LOOP, first="pass")
    line = [cell_of(text, "In [1]"), cell_of(f"%tpu_train loop {words}\n", "In [2]")]
    whole = [cell_of(f"%%tpu_train {words}\n{text}", "In [1]")]
    assert [one.code for one in check_cells(line, RULES)] == ["TPU502"] * found
    assert [one.code for one in check_cells(whole, RULES)] == ["TPU502"] * found
