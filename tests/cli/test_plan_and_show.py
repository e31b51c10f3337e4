"""`tf-bandmf plan` and `tf-bandmf show`, called as functions."""

import json

import pytest

import tf_bandmf
from tf_bandmf import cli

PLAN = ["plan", "--epsilon", "4", "--delta", "1e-5", "--examples", "2000"]
PLAN += ["--batch-size", "100", "--epochs", "4"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("plans") / "plan.json")
    code = cli.main([*PLAN, "--mechanism", "bisr", "--clip", "0.5", "--out", path])
    assert code == 0
    return path


def test_a_plan_is_saved_and_shown(saved, capsys):
    plan = tf_bandmf.Plan.load(saved)
    assert plan.l2_norm_clip == 0.5 and plan.num_steps == 80
    assert cli.main(["show", saved]) == 0
    out = capsys.readouterr().out
    # Wrapped to the terminal's width.
    assert str(plan.statement()).split() == _between(out, "Privacy", plan.fingerprint)
    assert "Chosen: bisr:" in out
    assert "keeps 0 vectors" in out


def _between(text, first, last):
    """The words from the first one that is `first` to the one with `last` in it."""
    words = text.split()
    end = next(i for i, word in enumerate(words) if last in word)
    return words[words.index(first) : end + 1]


def test_show_prints_json(saved, capsys):
    assert cli.main(["show", saved, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    plan = tf_bandmf.Plan.load(saved)
    assert found["fingerprint"] == plan.fingerprint
    assert found["choice"]["mechanism"].startswith("bisr:")
    curve = [(point["delta"], point["epsilon"]) for point in found["curve"]]
    assert (1e-5, 4.0) in curve
    # Epsilon grows as delta falls.
    assert curve == sorted(curve, key=lambda point: (-point[0], point[1]))
    assert [e for _, e in curve] == sorted(e for _, e in curve)


def test_a_part_is_reserved(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    kept = ["--counts", "0.02", "--metrics", "0.1", "--evaluations", "4"]
    assert (
        cli.main([*PLAN, "--mechanism", "bisr:4", *kept, "--json", "--out", path]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    plan = tf_bandmf.Plan.load(path)
    assert found["measurements"] == plan.measurements.to_config()
    assert plan.measurements.evaluations == 4 and plan.epsilon == 4.0
    assert cli.main([*PLAN, "--mechanism", "bisr:4", "--metrics", "0.1"]) != 0
    assert "evaluations" in capsys.readouterr().err


def test_memory_in_bytes(capsys):
    memory = ["--max-memory", "12KB", "--parameters", "1000"]
    code = cli.main([*PLAN, "--mechanism", "bsr", *memory, "--json"])
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert 1 <= found["memory_vectors"] <= 3


def test_cyclic_sampling_has_as_many_parts_as_bands(capsys):
    code = cli.main(
        [*PLAN, "--mechanism", "bsr", "--sampling", "cyclic-poisson", "--json"]
    )
    assert code == 0
    found = json.loads(capsys.readouterr().out)
    assert found["participation"]["kind"] == "cyclic_poisson"
    assert found["participation"]["num_parts"] == found["parameters"]["bands"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mechanism", "magic"], "mechanism must be one of"),
        (["--batch-size", "2001"], "batch_size must be <= num_examples"),
        (["--epochs", "0"], "epochs must be a whole number >= 1"),
        (["--max-memory", "1GB"], "needs --parameters"),
        (["--max-memory", "much"], "is not a size"),
        (["--memory-vectors", "-1"], "max_memory_vectors must be a whole number >= 0"),
        (["--mechanism", "bsr", "--memory-vectors", "0"], "keeps at least one vector"),
        (
            ["--mechanism", "bisr", "--sampling", "poisson"],
            "Poisson sampling amplifies",
        ),
        (["--sampling", "nothing"], "must be one of fixed-order, b-min-sep"),
        (["--clip", "-1"], "l2_norm_clip must be finite and > 0"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(capsys, arguments, message):
    assert cli.main([*PLAN, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1


@pytest.mark.parametrize("damage", ["text", "number", "field", "missing", "list"])
def test_a_damaged_plan_is_refused_in_one_line(saved, capsys, tmp_path, damage):
    path = tmp_path / "damaged.json"
    content = json.loads(open(saved, encoding="utf-8").read())
    if damage == "number":
        content["plan"]["noise_multiplier"] *= 0.5
    elif damage == "field":
        del content["plan"]["strategy"]
    elif damage == "list":
        content = []
    if damage != "missing":
        text = "{" if damage == "text" else json.dumps(content)
        path.write_text(text, encoding="utf-8")
    assert cli.main(["show", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert "does not exist" in captured.err or "damaged" in captured.err.lower()
    assert captured.err.count(str(path)) == 1


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    capsys, tmp_path, monkeypatch
):
    monkeypatch.setattr("tf_bandmf.planning.build.plan", None)
    out = str(tmp_path / "nowhere" / "plan.json")
    assert cli.main([*PLAN, "--mechanism", "identity", "--out", out]) == 2
    captured = capsys.readouterr()
    assert "folder does not exist" in captured.err and captured.err.count("\n") == 1


def test_a_card_is_saved_in_plain_words(capsys, tmp_path):
    path = tmp_path / "plan.json"
    tf_bandmf.plan(
        "bsr:4", epsilon=2, delta=1e-5, num_examples=600, batch_size=60, epochs=2
    ).save(str(path))
    texts = {}
    for suffix in (".md", ".html", ".json"):
        card = tmp_path / f"card{suffix}"
        arguments = ["show", str(path), "--card", str(card), "--model-name", "churn"]
        assert cli.main([*arguments, "--unit", "one user", "--json"]) == 0
        texts[suffix] = card.read_text(encoding="utf-8")
        assert "What is protected" in texts[suffix] and "one user" in texts[suffix]
    assert texts[".md"].startswith('---\nlibrary_name: "keras"')
    assert json.loads(texts[".json"])["model_name"] == "churn"
    capsys.readouterr()
    for wrong, message in (
        (
            ["--card", str(tmp_path / "card.pdf")],
            "--card must end in .md, .html, .json",
        ),
        (["--card", str(tmp_path / "none" / "card.md")], "the folder does not exist"),
        (["--model-name", "churn"], "--model-name needs --card"),
        (["--unit", "two\nlines"], "unit must name"),
    ):
        assert cli.main(["show", str(path), *wrong]) == 2
        assert message in capsys.readouterr().err
