"""The list of rules. Modules that begin with an underscore are shared by rules.

Codes never change: people write them in `# noqa` comments.
"""

from __future__ import annotations

from tpu_magics.check.rule import Rule
from tpu_magics.check.rules import launch, migrate, precision, ranks, recompiles, shapes, tensorflow, trainer, values

GROUPS = (values, shapes, recompiles, launch, ranks, precision, trainer, tensorflow, migrate)
RULES: tuple[Rule, ...] = tuple(sorted((rule for group in GROUPS for rule in group.RULES), key=lambda rule: rule.code))
