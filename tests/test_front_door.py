"""`import tf_bandmf` loads no large packages, and all public names exist."""

import re

import pytest
from children import printed
from modules import ROOT

import tf_bandmf

HEAVY = ("tensorflow", "tensorflow_probability", "keras", "dp_accounting", "scipy")
COMPARE = (
    "compare --num-steps 200 --min-separation 20 --json --mechanisms "
    "identity,bsr:4,bisr:4,lambda_cgd:0.9,bsr:4:normalized"
)


def loaded(code):
    """Returns the packages of `HEAVY` that `code` imports in a new interpreter."""
    program = (
        f"import sys\n{code}\n"
        f"print('LOADED', *[m for m in {HEAVY} if m in sys.modules])"
    )
    lines = printed("-c", program).splitlines()
    (line,) = [x for x in lines if x.startswith("LOADED")]
    return line.split()[1:]


def command(arguments):
    return f"from tf_bandmf.cli import main\nmain({arguments.split()!r})"


CODE = {
    "import": "import tf_bandmf",
    "strategies": "import tf_bandmf; tf_bandmf.MinSep(3); tf_bandmf.strategies.identity(4)",
    "help": command("--help"),
    "plan": command("plan --help"),
    "typo": command("comprae"),
}


@pytest.mark.parametrize("name", CODE)
def test_the_front_door_loads_nothing_heavy(name):
    assert loaded(CODE[name]) == []


def test_a_table_of_closed_forms_loads_no_tensorflow_and_no_accounting():
    assert loaded(command(COMPARE)) == ["scipy"]


def test_the_public_names_exist():
    for name in tf_bandmf.__all__:
        assert getattr(tf_bandmf, name) is not None, name
    assert set(tf_bandmf.__all__) <= set(dir(tf_bandmf))
    assert len(tf_bandmf.__all__) <= 25
    page = ROOT / "docs" / "api" / "index.md"
    listed = re.findall(r"^\| `(\w+)` \| \S", page.read_text("utf-8"), re.M)
    assert sorted(listed) == sorted(tf_bandmf.__all__)
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        tf_bandmf.magic  # noqa: B018
