"""Builds have the right files, and leave no files in the source tree."""

import email
import shutil
import tarfile
import zipfile

import pytest
from children import printed
from modules import ROOT

SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "tf_bandmf")
EXTRAS = "keras hub plot ledger ledger-postgresql flower docs examples test dev"
BUILD = "import sys, setuptools.build_meta as b; b.build_{}(sys.argv[1])"


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Copies the sources, and builds a wheel and an sdist from the copy.

    Returns the copy's folder, a list of its files before the builds, and the folder of
    the built files.
    """
    pytest.importorskip("wheel")
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, ignore=ignore)
        else:
            shutil.copy(ROOT / name, copy / name)
    before = tree(copy)
    for kind in ("wheel", "sdist"):
        printed("-c", BUILD.format(kind), out, cwd=copy)
    return copy, before, out


@pytest.mark.slow
def test_a_build_leaves_nothing_in_the_source_tree(built):
    copy, before, _ = built
    assert tree(copy) == before


def test_the_wheel_has_the_package_and_its_metadata(built):
    (wheel,) = built[2].glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (path,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(archive.read(path))
    assert {"tf_bandmf/py.typed", "tf_bandmf/planning/texts.ini"} < set(names)
    assert "tf_bandmf/plots/__init__.py" in names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tf_bandmf"}
    assert set(EXTRAS.split()) == set(metadata.get_all("Provides-Extra"))
    assert any(name.startswith("click") for name in metadata.get_all("Requires-Dist"))
    assert "Typing :: Typed" in metadata.get_all("Classifier")


def test_the_sdist_can_be_built_from(built):
    (sdist,) = built[2].glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "setup.py", "README.md", "LICENSE"} <= names
    assert not any("__pycache__" in name or name.endswith(".npz") for name in names)
