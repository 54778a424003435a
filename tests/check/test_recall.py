"""How many of the problems in problems.py are found: at least nine of ten, and which are not; and what was judged."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.check import corpus
from tests.check.own_rules import finding
from tpu_magics.check import check_cells
from tpu_magics.check.cells import cell_of

FILE = Path(__file__).with_name("problems.py")
WANTED = 0.9
TORCH = """\
import random
import numpy as np
import torch, torch.nn as nn, torch.nn.functional as F
import torchvision, torch_xla, wandb
import torch_xla.core.xla_model as xm
from accelerate import Accelerator
from sklearn.metrics import accuracy_score
device = torch_xla.device()
NAMES = ["cat", "dog", "bird"]
"""
STEP = """
def train(model, optimizer, loader, rng, bar, logger, writer, accelerator: Accelerator):
    best, total, hits, correct, mistakes, average = 1e9, 0, 0, 0, 0, 0
    losses, history, predictions, previous = [], [], [], torch.zeros(16, 10, device=device)
    everything, weights = torch.zeros(0, 10, device=device), torch.ones(16, 16, device=device)
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad()
        out = model(x)
        loss = F.cross_entropy(out, y)
{lines}
        loss.backward()
        optimizer.step()
        torch_xla.sync()
"""
FORWARD = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.layers = nn.Linear(8, 8), nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])
        self.experts = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor, lengths: torch.Tensor, padding_mask: torch.BoolTensor):
{lines}
        return x
"""
TF = """\
import tensorflow as tf

@tf.function(jit_compile=True)
def step(x: tf.Tensor, lengths: tf.Tensor):
{lines}
    return x
"""
STRATEGY = """\
import numpy as np
import tensorflow as tf
from tensorflow import keras

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(optimizer="adam", loss="mse")
data = tf.data.Dataset.from_tensor_slices(np.zeros((64, 8)))
{lines}
"""
PLACES = {
    "step": (TORCH + STEP, 8),
    "forward": (TORCH + FORWARD, 8),
    "tf": (TF, 4),
    "strategy": (STRATEGY, 0),
    "notebook": ("%%tpu_check\n{lines}", 0),
    "program": ("{lines}", 0),
}


class Problem(NamedTuple):
    """`codes`: any of these rules is right."""

    codes: frozenset[str]
    place: str
    title: str
    lines: str

    @property
    def text(self) -> str:
        template, columns = PLACES[self.place]
        return template.replace("{lines}", textwrap.indent(self.lines.rstrip(), " " * columns))


def problems() -> list[Problem]:
    parts = re.split(r"^# %% (TPU[\d|TPU]+) (\w+): (.*)\n", FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    rows = zip(*(parts[at::4] for at in range(4)), strict=True)
    return [Problem(frozenset(codes.split("|")), *rest) for codes, *rest in rows]


def found(problem: Problem) -> set[str]:
    notebook = problem.place == "notebook"
    return {one.code for one in check_cells([cell_of(problem.text, "In [1]" if notebook else "train.py")])}


def test_at_least_nine_of_ten_problems_are_found() -> None:
    given = problems()
    missed = [one for one in given if not one.codes & found(one)]
    assert len(given) >= 120
    assert len(missed) <= (1 - WANTED) * len(given), "\n".join(f"{'|'.join(one.codes)} {one.title}" for one in missed)


@pytest.mark.parametrize("place", PLACES)
def test_a_place_by_itself_has_no_problem(place: str) -> None:
    """What is found is in the lines, not around them."""
    assert not found(Problem(frozenset(), place, "", "pass" if place != "notebook" else "x = 1"))


def test_what_was_judged_is_enough_and_mostly_true() -> None:
    """corpus.py, which is run by hand, says what was drawn of it; here is what it has to draw from."""
    judged = corpus.judgements()
    assert len({(one.path, one.code, one.hash) for one in judged}) == len(judged) >= corpus.SAMPLE
    assert {one.verdict for one in judged} <= set(corpus.VERDICTS) and all(one.reason for one in judged)
    assert corpus.precision(judged) > 0.85, "of all that were ever judged; those that were false are mostly gone"


def test_the_sample_is_the_same_again_and_larger_rules_have_more() -> None:
    found = [
        finding(line, code=code, message=str(line))
        for code, count in (("TPU1", 900), ("TPU2", 100), ("TPU3", 1))
        for line in range(1, count + 1)
    ]
    drawn = corpus.sample(found)
    assert drawn == corpus.sample(found[::-1]) and len(drawn) >= 190
    counts = Counter(one.code for one in drawn)
    assert counts["TPU1"] > 2 * counts["TPU2"] and counts["TPU3"] == 1
    assert set(corpus.sample(found[:-1])) >= set(drawn[:-1]), "what goes makes nothing else go"
