"""Smoke test of an installed distribution, to be run outside of the source tree.

cd /tmp && python .../tests/smoke_installed.py
"""

import pathlib
import subprocess
import sys
import tempfile

import numpy as np

import tf_bandmf


def main() -> None:
    package = pathlib.Path(tf_bandmf.__file__).parent
    assert "site-packages" in package.parts, f"not the installed package: {package}"
    assert (package / "py.typed").exists()
    command = pathlib.Path(sys.executable).parent / "tf-bandmf"
    done = subprocess.run([command, "--version"], capture_output=True, text=True)
    assert done.stdout.strip() == tf_bandmf.__version__, done
    plan = tf_bandmf.plan(
        "bisr:4", epsilon=4, delta=1e-3, num_examples=64, batch_size=16, epochs=2
    )
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/plan.json"
        plan.save(path)
        assert tf_bandmf.Plan.load(path).fingerprint == plan.fingerprint

    import keras

    from tf_bandmf.keras import fit_privately

    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
    before = model.get_weights()
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(64, n)).astype(np.float32) for n in (4, 2))
    fitted = fit_privately(
        model, x, y, plan=plan, optimizer="sgd", loss="mse", verbose=0
    )
    assert all(np.any(a != b) for a, b in zip(fitted.model.get_weights(), before))
    print(f"tf-bandmf {tf_bandmf.__version__} in {package}: works")


if __name__ == "__main__":
    main()
