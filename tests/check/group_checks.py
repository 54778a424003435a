"""Code that is checked with the rules of one group, and fixed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from tpu_magics.check import check_cells
from tpu_magics.check.cells import CodeCell, cell_of
from tpu_magics.check.finding import Finding
from tpu_magics.check.fixes import fix
from tpu_magics.check.rule import Rule

TORCH_XLA = (
    "import torch\nimport torch_xla\nimport torch_xla.core.xla_model as xm\n"
    "import torch_xla.distributed.parallel_loader as pl\n"
)


@dataclass(frozen=True)
class GroupChecks:
    """`head`: lines before each text that is checked."""

    rules: Sequence[Rule]
    head: str = ""

    def check(self, cells: Sequence[CodeCell]) -> list[Finding]:
        return check_cells(cells, self.rules)

    def found(self, text: str, path: str = "x.py") -> list[Finding]:
        return self.check([cell_of(self.head + textwrap.dedent(text).strip() + "\n", path)])

    def codes(self, text: str, path: str = "x.py") -> list[str]:
        return [one.code for one in self.found(text, path)]

    def fixed_text(self, text: str, path: str = "x.py", number: int | None = None) -> str:
        """The whole text after `--fix`; it parses, and a second time changes nothing."""
        cells = fix([cell_of(text, path, number)], self.check, unsafe=True).cells
        assert cells[0].tree is not None
        assert not fix(cells, self.check, unsafe=True).changes
        return cells[0].text
