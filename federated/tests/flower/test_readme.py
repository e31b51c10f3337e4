"""The README's programs for Flower run without changes."""

import pathlib
import re

from flwr.app import ArrayRecord, Message, RecordDict
from one_process import OneProcess, initial_arrays

README = pathlib.Path(__file__).parents[2] / "README.md"


def test_the_programs_of_flower(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = README.read_text("utf-8").split("\n## TensorFlow Federated")[0]
    make, serve, device = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    seen, names = [], {"initial_arrays": initial_arrays()}
    exec(make, names)

    def learned(message):
        weights = message.content["arrays"].to_numpy_ndarrays()
        record = ArrayRecord([weight + 1 for weight in weights])
        named = dict(zip(message.content["arrays"], record.values(), strict=True))
        return Message(RecordDict({"new": ArrayRecord(named)}), reply_to=message)

    names["learned"] = learned
    exec(device.replace("context): ...", "context): return learned(message)"), names)
    grid = OneProcess(str(tmp_path / "nodes"), names["plan"], 40)
    for node in grid.nodes.values():
        node.app = names["app"]
    names.update(grid=grid, on_public_data=lambda number, _: seen.append(number))
    serve = serve.replace("/srv/run", str(tmp_path))
    exec(serve.replace("timeout=", "num_rounds=2, timeout="), names)
    assert seen == [1, 2]
    counts = names["result"].train_metrics_clientapp
    assert [counts[number]["contributing"] for number in seen] == [20, 20]
    assert "| rounds | 200 | 2 |" in (tmp_path / "privacy.md").read_text()
