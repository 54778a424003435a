"""The group `tensorflow`: fixes, advice, and the strategy's scope.

TensorFlow is not needed: its behaviour was measured with 2.20 and Keras 3.15.
"""

from __future__ import annotations

import pytest

from tests.check.group_checks import GroupChecks
from tpu_magics.check.cells import cell_of
from tpu_magics.check.rules.tensorflow import RULES

IMPORT = "import os\nimport tensorflow as tf\n"
RESOLVER = "tf.distribute.cluster_resolver.TPUClusterResolver"
STRATEGY = IMPORT + f'strategy = tf.distribute.TPUStrategy({RESOLVER}(tpu="local"))\n'
MODEL = "tf.keras.Sequential([tf.keras.layers.Dense(1)])"


GROUP = GroupChecks(RULES)
check, found, codes, fixed_text = GROUP.check, GROUP.found, GROUP.codes, GROUP.fixed_text


# -- fixes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('m.compile("adam", "mse", jit_compile=True)', 'm.compile("adam", "mse")'),
        ('m.compile("adam", jit_compile=True, loss="mse")', 'm.compile("adam", loss="mse")'),
        ("m.compile(jit_compile=True)", "m.compile()"),
        ("m.compile(\n    'adam',\n    jit_compile=True,  # fast\n)", "m.compile(\n    'adam',\n)"),
        ("m.compile(\n    'adam',\n    jit_compile=True)", "m.compile(\n    'adam')"),
        ("m.compile(\n    'adam',  # the usual\n    jit_compile=True)", None),
    ],
)
def test_jit_compile_is_taken_out(before: str, after: str | None) -> None:
    text = STRATEGY + "with strategy.scope():\n    m = " + MODEL + "\n    "
    assert codes(text + before + "\nm.fit(1, 1)\n") == ["TPU701"]
    assert (
        fixed_text(text + before + "\nm.fit(1, 1)\n") == text + (before if after is None else after) + "\nm.fit(1, 1)\n"
    )


def test_jit_compile_is_taken_out_of_a_decorator() -> None:
    text = STRATEGY + "@tf.function({0})\ndef step(x):\n    return strategy.run(len, args=(x,))\n"
    assert fixed_text(text.format("jit_compile=True")) == text.format("")
    assert fixed_text(text.format("jit_compile=True, reduce_retracing=True")) == text.format("reduce_retracing=True")


# -- advice ----------------------------------------------------------------------------------------------------------


def test_what_is_only_advice() -> None:
    home = f'{IMPORT}# before the TPU\nm = {MODEL}\nm.compile("adam", "mse")\nm.fit(1, 1)\n'
    assert [(one.code, one.advice) for one in found(home)] == [("TPU702", True)]
    outside = f'{STRATEGY}with strategy.scope():\n    m = {MODEL}\nm.compile("adam", "mse")\nm.fit(1, 1)\n'
    assert [(one.code, one.advice) for one in found(outside)] == [("TPU703", True)]


def test_no_advice_beside_a_strategy_or_without_training() -> None:
    text = f'# TPU\n{IMPORT}{{0}}m = {MODEL}\nm.compile("adam", "mse")\n{{1}}'
    assert codes(text.format("", "m.fit(1, 1)\n")) == ["TPU702"]
    assert codes(text.format("", "")) == []
    assert codes(text.format("s = tf.distribute.MirroredStrategy()\n", "m.fit(1, 1)\n")) == []
    assert codes(text.replace("TPU", "laptop").format("", "m.fit(1, 1)\n")) == []


# -- the scope through cells and functions ---------------------------------------------------------------------------


def test_the_scope_is_seen_through_cells_and_functions() -> None:
    cells = [
        cell_of(STRATEGY, "a.ipynb", 1),
        cell_of(f"def build():\n    return {MODEL}\n\ndef outer():\n    return build()\n", "a.ipynb", 2),
        cell_of("with strategy.scope():\n    inside = outer()\n", "a.ipynb", 3),
        cell_of("inside.fit(1, 1)\n", "a.ipynb", 4),
    ]
    assert check(cells) == []
    outside = [*cells[:2], cell_of("outside = outer()\noutside.fit(1, 1)\n", "a.ipynb", 3)]
    (one,) = check(outside)
    assert (one.code, one.cell, one.line) == ("TPU703", 3, 1)
    assert one.message == "outside is created outside the strategy's scope."
    assert one.fix == "Move it into `with strategy.scope():`."


def test_a_scope_that_is_entered_by_hand_is_not_judged() -> None:
    text = f"{STRATEGY}scope = strategy.scope()\nscope.__enter__()\nm = {MODEL}\nm.fit(1, 1)\n"
    assert codes(text) == []
    assert codes(text.replace("scope.__enter__()\n", "")) == ["TPU703"]
    named = f"{STRATEGY}scope = strategy.scope()\nwith scope:\n    m = {MODEL}\nm.fit(1, 1)\n"
    assert codes(named) == []
