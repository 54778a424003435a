"""What is shipped of the JupyterLab extension: a wheel that needs no Node.js, found by JupyterLab, small, with types
that are made from the Python side's."""

from __future__ import annotations

import dataclasses
import gzip
import importlib.util
import json
import re
import tarfile
import typing
import zipfile
from pathlib import Path
from typing import Any, Literal

import pytest

import tpu_magics
from tests.browser.installed import NAME, ROOT, Environment, built, install

SOURCES = ROOT / "labextension"
LIMIT = 100_000  # bytes of the bundle, gzipped; 22,000 of them are the charts' (uPlot)
SHARE = f"share/jupyter/labextensions/{NAME}"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory)[0]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory)[1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return install(wheel, tmp_path_factory.mktemp("installed"))


# -- the wheel ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(wheel: Path) -> dict[str, bytes]:
    """The files that JupyterLab finds, by their paths in the extension's folder."""
    archive = zipfile.ZipFile(wheel)
    found = (name for name in archive.namelist() if f".data/data/{SHARE}/" in name)
    return {name.partition(f"{SHARE}/")[2]: archive.read(name) for name in found}


@pytest.mark.process
def test_the_wheel_holds_the_bundle_where_jupyterlab_looks(wheel: Path, shipped: dict[str, bytes]) -> None:
    package = json.loads(shipped["package.json"])
    assert package["version"] == tpu_magics.__version__
    assert package["jupyterlab"]["_build"]["load"] in shipped
    assert {"install.json", f"schemas/{NAME}/plugin.json", "static/style.js"} <= set(shipped)
    assert not [name for name in shipped if name.endswith(".map")], "built for development"
    inside = [name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("tpu_magics/labextension")]
    assert not inside, "the bundle is shipped twice"


@pytest.mark.process
def test_the_sdist_holds_the_bundle_so_that_its_wheel_needs_no_node(sdist: Path, shipped: dict[str, bytes]) -> None:
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    bundled = {f"tpu_magics/labextension/{name}" for name in shipped if name != "install.json"}
    assert bundled <= inside and "tpu_magics/labextension/sources.sha256" in inside
    assert not [name for name in inside if "node_modules" in name]


@pytest.mark.process
def test_the_bundle_is_small(shipped: dict[str, bytes]) -> None:
    scripts = {name: len(gzip.compress(data)) for name, data in shipped.items() if name.endswith(".js")}
    assert sum(scripts.values()) < LIMIT, scripts


@pytest.mark.process
def test_jupyterlab_lists_it_as_enabled_and_ok(installed: Environment) -> None:
    listed = installed.run("-c", "from jupyterlab.labextensions import main; main()", "list")
    line = next((line for line in _plain(listed).splitlines() if NAME in line), listed)
    assert re.search(rf"{NAME} v{re.escape(tpu_magics.__version__)} enabled OK", line), listed
    assert str(installed.folder / "env" / "share") in listed


@pytest.mark.process
def test_the_environment_has_the_package_of_the_wheel(installed: Environment) -> None:
    where = Path(installed.run("-c", "import tpu_magics; print(tpu_magics.__file__)").strip())
    assert where.is_relative_to(installed.folder)


def test_a_checkout_tells_where_its_bundle_lies() -> None:
    [one] = tpu_magics._jupyter_labextension_paths()
    assert one == {"src": "labextension", "dest": NAME}
    output = json.loads((SOURCES / "package.json").read_text())["jupyterlab"]["outputDir"]
    assert (SOURCES / output).resolve() == (ROOT / "tpu_magics" / one["src"]).resolve()


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


# -- its packages and sources ------------------------------------------------------------------------------------------


def test_the_lock_file_pins_everything_and_names_no_other_registry() -> None:
    text = (SOURCES / "package-lock.json").read_text()
    packages = json.loads(text)["packages"]
    own = packages.pop("")
    package = json.loads((SOURCES / "package.json").read_text())
    for kind in ("dependencies", "devDependencies"):
        assert own[kind] == package[kind], "npm ci would refuse"
    assert all(one["version"] and one["integrity"] for one in packages.values())
    assert {"".join(one.get("resolved", "").split("/")[:3]) for one in packages.values()} <= {
        *("", "https:registry.npmjs.org")
    }
    assert not re.search(r"\bfile:|git\+|localhost", text)


@pytest.mark.process
def test_what_jupyterlab_shares_is_not_bundled_again(shipped: dict[str, bytes]) -> None:
    licences = json.loads(shipped["static/third-party-licenses.json"])["packages"]
    bundled = {one["name"] for one in licences}
    assert bundled <= {"css-loader", "style-loader", "uplot"}, bundled  # JupyterLab has no charts to share


FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|\beval\(|new Function|\bfetch\(|XMLHttpRequest|WebSocket\("
)


def own_sources() -> list[Path]:
    found = (path for path in sorted((SOURCES / "src").rglob("*")) if path.suffix in (".ts", ".tsx"))
    return [path for path in found if not re.search(r"__tests__|\.(test|spec)\.", path.as_posix())]


def test_texts_go_into_the_page_as_text_and_nothing_goes_to_the_network() -> None:
    found = [f"{path.name}: {hit[0]}" for path in own_sources() for hit in FORBIDDEN.finditer(path.read_text())]
    assert not found, found


def test_every_source_says_what_lives_in_it() -> None:
    silent = [path.name for path in own_sources() if not path.read_text().startswith(("//", "/*"))]
    assert not silent, silent


# -- what travels ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def typescript() -> Any:
    spec = importlib.util.spec_from_file_location("typescript", ROOT / "scripts" / "typescript.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_types_are_those_of_the_dataclasses(typescript: Any) -> None:
    """Fixed by: python scripts/typescript.py"""
    assert (SOURCES / "src" / "types.ts").read_text() == typescript.source()


def test_all_that_is_sent_has_a_type_and_what_arrives_a_form(typescript: Any) -> None:
    text = typescript.source()
    names = {kind.__name__ for kind in typescript.travelling()}
    assert {"Page", "Chart", "Problem", "Site", "RunMessage", "UpdateMessage", "CheckRequest", "CheckedCell"} <= names
    for name in names:
        assert f"export interface {name} {{" in text
        assert (f"\n  {name}: {{" in text) == (not name.endswith("Request") and name != "CheckedCell"), name


@dataclasses.dataclass(frozen=True)
class Odd:
    of_texts: dict[str, str]
    either: int | str
    several: Literal["a", "b"]


@pytest.mark.parametrize("name", ["of_texts", "either", "several"])
def test_a_field_that_the_extension_could_not_check_is_refused(typescript: Any, name: str) -> None:
    with pytest.raises(TypeError, match="has no form in TypeScript"):
        typescript.written(typing.get_type_hints(Odd)[name])
