"""The badges of README.md: scripts/badges.py, and that the README has what it makes."""

from __future__ import annotations

from pathlib import Path

import badges
import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_every_numbered_notebook_has_both(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(badges, "repository", lambda: "someone/tpu_magics")
    paths = sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb"))
    assert paths
    for path in paths:
        address = f"/blob/main/{path.relative_to(ROOT).as_posix()})"
        [row] = [line for line in badges.block().splitlines() if address in line]
        assert (
            row.count(address) == 2
            and "colab.research.google.com/github/someone/tpu_magics" in row
            and "kernels/welcome?src=" in row
        )


def test_without_an_address_no_badge_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the README nor in a notebook: it would open nothing."""
    monkeypatch.setattr(badges, "repository", lambda: "")
    shown = [badges.block(), *(path.read_text(encoding="utf-8") for path in badges.notebooks())]
    assert not any(
        word in text for text in shown for word in ("Open in", "OWNER/", "colab.research", "kernels/welcome")
    )
    assert "(notebooks/01_quickstart.ipynb) |\n" in badges.block()


@pytest.mark.parametrize("found", ["https://github.com/someone/tpu_magics", "https://github.com/someone/tpu_magics/"])
def test_the_address_is_that_of_pyproject(found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(badges, "ROOT", tmp_path)
    project = tmp_path / "pyproject.toml"
    project.write_text('[project]\nname = "x"\n[other]\nRepository = "https://github.com/not/this"\n')
    assert badges.repository() == ""
    project.write_text(f'{project.read_text()}[project.urls]\nRepository = "{found}"\n[tool.x]\na = 1\n')
    assert badges.repository() == "someone/tpu_magics"


def test_the_readme_has_the_table_as_it_is_now() -> None:
    """Mended by: python scripts/badges.py --write"""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    other = readme.replace(badges.block(), "")
    assert "colab.research.google.com/github" not in other and "kernels/welcome" not in other, "a badge made by hand"
    assert badges.BEGIN in readme
    assert readme == badges.with_block(readme)


def test_writing_keeps_what_stands_around() -> None:
    text = f"above\n{badges.BEGIN}\nold\n{badges.END}\nbelow\n"
    assert badges.with_block(text) == f"above\n{badges.block()}\nbelow\n"
    assert badges.with_block(badges.with_block(text)) == badges.with_block(text)


def test_without_a_place_it_says_what_to_put_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(badges, "README", tmp_path / "README.md")
    badges.README.write_text("nothing\n")
    with pytest.raises(SystemExit, match="Put these two lines where it is to stand") as told:
        badges.main(["--write"])
    assert badges.BEGIN in str(told.value) and badges.README.read_text() == "nothing\n"
    badges.README.write_text(f"a\n{badges.BEGIN}\n{badges.END}\nb\n")
    badges.main(["--write"])
    assert badges.README.read_text() == f"a\n{badges.block()}\nb\n"
