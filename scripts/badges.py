"""The table of notebooks in README.md, with the badges "Open in Colab" and "Open in Kaggle".

The badges' addresses come from `Repository` under [project.urls] in pyproject.toml; without one there are no badges.

Usage: python scripts/badges.py            prints the table
       python scripts/badges.py --write    writes it into README.md, between its two marks
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
BEGIN, END = "<!-- notebooks: made by scripts/badges.py -->", "<!-- end of notebooks -->"
COLAB = (
    "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    "(https://colab.research.google.com/github/{repository}/blob/main/{path})"
)
KAGGLE = (
    "[![Open in Kaggle](https://kaggle.com/static/images/open-in-kaggle.svg)]"
    "(https://kaggle.com/kernels/welcome?src=https://github.com/{repository}/blob/main/{path})"
)


def main(arguments: list[str]) -> None:
    if arguments != ["--write"]:
        print(block())
        return
    old = README.read_text(encoding="utf-8")
    if BEGIN not in old or END not in old:
        raise SystemExit(
            f"README.md has no place for the table. Put these two lines where it is to stand:\n{BEGIN}\n{END}"
        )
    README.write_text(with_block(old), encoding="utf-8")


def with_block(text: str) -> str:
    """The text, with the table as it is now between the marks."""
    head, _, rest = text.partition(BEGIN)
    return f"{head}{block()}{rest.partition(END)[2]}"


def block() -> str:
    """The table between its marks."""
    address = repository()
    rows = [f"| {title(path)} |{badges(address, path)}" for path in notebooks()]
    head = ["| notebook | open it |", "|---|---|"] if address else ["| notebook |", "|---|"]
    return "\n".join([BEGIN, "", *head, *rows, "", END])


def notebooks() -> list[Path]:
    """The numbered ones, those in folders last."""
    found = (ROOT / "notebooks").rglob("[0-9]*.ipynb")
    return sorted(
        (path for path in found if ".ipynb_checkpoints" not in path.parts), key=lambda path: (len(path.parts), path)
    )


def title(path: Path) -> str:
    """A link to the notebook, with its title."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    first = "".join(cells[0]["source"]).splitlines()[0].lstrip("# ")
    return f"[{first}]({path.relative_to(ROOT).as_posix()})"


def badges(address: str, path: Path) -> str:
    """The cell of the table that has both; "" without an address."""
    forms = (COLAB, KAGGLE) if address else ()
    made = [form.format(repository=address, path=path.relative_to(ROOT).as_posix()) for form in forms]
    return f" {' '.join(made)} |" if made else ""


def repository() -> str:
    """ "owner/name" of the address that pyproject.toml gives; "" where it gives none."""
    found = re.search(r'^Repository = "https://github\.com/([^/"]+/[^/"]+?)/?"$', _urls(), re.MULTILINE)
    return found[1] if found else ""


def _urls() -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return text.partition("[project.urls]")[2].partition("\n[")[0]


if __name__ == "__main__":
    main(sys.argv[1:])
