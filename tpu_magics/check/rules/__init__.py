"""The list of rules. Modules that begin with an underscore are shared by rules.

Codes never change: people write them in `# noqa` comments.
"""

from __future__ import annotations

from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import launch, precision, recompiles, shapes, tensorflow, trainer, values

RULES: tuple[Rule, ...] = (
    *values.RULES,
    *shapes.RULES,
    *recompiles.RULES,
    *launch.RULES,
    *precision.RULES,
    *trainer.RULES,
    *tensorflow.RULES,
)
