"""The command line never shows a traceback, whatever its arguments are."""

import pytest
from hostile import limited
from hypothesis import given, settings
from hypothesis import strategies as st

from tf_bandmf.cli import main

BASES = {
    "compare": {
        "--num-steps": "20",
        "--min-separation": "5",
        "--max-participations": "4",
        "--mechanisms": "identity,bsr:2",
        "--epsilon": "2",
        "--delta": "1e-5",
    },
    "plan": {
        "--epsilon": "2",
        "--delta": "1e-5",
        "--num-examples": "40",
        "--batch-size": "10",
        "--epochs": "2",
        "--mechanism": "bsr:2",
    },
}
TEXTS = [
    *("", " ", "x", "nan", "inf", "-inf", "-1", "0", "1e400", "1e-400", "0x10", "1_0"),
    *("9" * 40, "9" * 5000, "\u00e9\u0301", "\0", "\n", "--", "-", "None", "True"),
    *(
        "bsr:0",
        "bsr:-1",
        "bsr:nan",
        "bsr:2:2:2",
        "bsr:",
        ":",
        ",",
        "identity,,identity",
    ),
    *("1/0", "1/3", "[1]", "{}", "../..", "%s%n", "\x1b[31m", "a=b", "--help=1"),
]


def ending(arguments):
    """Returns the exit code, which `main` either returns or raises as SystemExit."""
    try:
        with limited():
            code = main(arguments)
    except SystemExit as stop:
        code = stop.code
    return 0 if code is None else code


@pytest.mark.slow_cases("compare")
@pytest.mark.attack(
    "Wrong arguments of the command line",
    tried="Each option of `plan` and `compare` gets 37 texts: wrong ones lead to an "
    "exit code and a message, but never to a traceback.",
    area="fuzz",
)
@pytest.mark.parametrize("command", BASES)
def test_every_option_with_every_text(command, capfd):
    options = BASES[command]
    assert ending(_line(command, options)) == 0
    capfd.readouterr()
    for option in options:
        for text in TEXTS:
            code = ending(_line(command, {**options, option: text}))
            errors = capfd.readouterr().err
            assert code in (0, 1, 2), (option, text, code)
            assert "Traceback" not in errors, (option, text, errors)
            assert code == 0 or errors.strip(), (option, text)


def _line(command, options):
    return [command, *(f"{name}={value}" for name, value in options.items())]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from([*BASES, "show", "nothing", ""]),
    st.lists(
        st.one_of(
            st.sampled_from([*TEXTS, "--json", "--help", "--version", "--epochs", "5"]),
            st.text(max_size=8),
        ),
        max_size=6,
    ),
)
def test_any_words(command, words):
    assert ending([command, *words]) in (0, 1, 2)
