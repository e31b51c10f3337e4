"""Exports the XLA programs of this project, for the compilers of other devices.

    python benchmarks/accelerators/export.py --folder programs --only normals

One file `NUMBER.TPU.hlo`, one `NUMBER.GPU.hlo` for each program (layouts may differ), and
`programs.json`, which says what they are. Needs no device.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any
from unittest import mock

import tensorflow as tf
from programs import Program, programs


def exported(program: Program, kind: str) -> bytes:
    """Serialized HLO of the program as it is traced for a kind of device."""

    def placed(*arguments: tf.Tensor) -> Any:
        with tf.device(f"/device:{kind}:0"):
            return program.function(*arguments)

    compiled = tf.function(placed, jit_compile=True, autograph=False)
    # What is traced in a function of its own is in no scope: it asks for the process'.
    with mock.patch.object(
        tf.config, "list_logical_devices", lambda wanted: [wanted] * (wanted == kind)
    ):
        ir = compiled.experimental_get_compiler_ir(*program.specs)
    return bytes(ir(stage="hlo_serialized", platform_name="CPU"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--only", default="", help="part of the programs' names")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    found = []
    for number, (name, program) in enumerate(programs(options.only)):
        entry: dict[str, Any] = {
            "name": name,
            "least_bytes": program.least_bytes,
            "beside": program.beside,
        }
        for kind in program.kinds:
            try:
                content = exported(program, kind)
            except Exception as error:
                entry[kind] = {"error": f"{type(error).__name__}: {error}"[:400]}
                print(name, kind, entry[kind], flush=True)
                continue
            path = options.folder / f"{number:03d}.{kind}.hlo"
            path.write_bytes(content)
            entry[kind] = {"file": path.name}
        found.append(entry)
        print(f"{name}: exported", flush=True)
        text = json.dumps(found, indent=1)
        (options.folder / "programs.json").write_text(text)


if __name__ == "__main__":
    main()
