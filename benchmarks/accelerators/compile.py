"""Compiles exported programs for a TPU or a GPU on a machine that has neither.

    python benchmarks/accelerators/compile.py --folder programs --results compiled.json

Needs JAX with its plugins alone (`requirements/accelerators.txt`): TensorFlow and JAX are
not in one environment. Each program is compiled in a process of its own, which may fail or
take too long without the others. What `--results` has of the same program, by the same
compilers, is not compiled again; what it has of programs that are not in the folder stays.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Any

# Name, kind, and what JAX calls the machine.
DEVICES = {
    "TPU v5e": ("TPU", "v5e:2x2"),
    "H100": ("GPU", "h100"),
    "TPU v6e": ("TPU", "v6e:2x2"),
    "A100": ("GPU", "a100"),
}
# What XLA must know of a GPU that is not there, in the form of its `GpuTargetConfigProto`;
# numbers of NVIDIA's data sheets (H100 SXM5 80 GB, A100 SXM4 80 GB) and of CUDA's
# programming guide for compute capability 9.0 and 8.0.
_GPU = """gpu_device_info {{ threads_per_block_limit: 1024 threads_per_warp: 32
shared_memory_per_block: 49152 shared_memory_per_core: {core_memory}
threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: {units}
block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
memory_bandwidth: {bandwidth} l2_cache_size: {cache} clock_rate_ghz: {clock}
device_memory_size: {memory} shared_memory_per_block_optin: {block_memory}
cuda_compute_capability {{ major: {major} }}
registers_per_core_limit: 65536 registers_per_block_limit: 65536 }}
platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 8 }}
device_description_str: "{name}" """
_GPUS = {
    "h100": _GPU.format(
        name="NVIDIA H100 80GB HBM3", cores=132, units=128, major=9, clock=1.98,
        core_memory=233472, block_memory=232448, cache=52428800,
        bandwidth=3352320000000, memory=84978434048,
    ),
    "a100": _GPU.format(
        name="NVIDIA A100-SXM4-80GB", cores=108, units=64, major=8, clock=1.41,
        core_memory=167936, block_memory=166912, cache=41943040,
        bandwidth=2039000000000, memory=85095874560,
    ),
}  # fmt: skip


def digest(path: pathlib.Path) -> str:
    """Names a program by what it computes, and the compilers that are installed.

    Names within it, which count what was traced before, do not matter.
    """
    from jax._src.lib import xla_client

    text = xla_client.XlaComputation(path.read_bytes()).as_hlo_text()
    names: dict[str, str] = {}
    text = re.sub(
        r"\b[A-Za-z_][\w\-]*\.\d+(\.\d+)*",
        lambda found: names.setdefault(found[0], f"n{len(names)}"),
        re.sub(r"^HloModule [^,]*", "", text),
    )
    versions = [importlib.metadata.version(name) for name in ("jax", "libtpu")]
    return hashlib.sha256("\n".join([*versions, text]).encode()).hexdigest()[:16]


def compiled(path: pathlib.Path, kind: str, target: str) -> dict[str, Any]:
    """Memory, kernels and bytes of one program, in this process."""
    os.environ.update(
        JAX_PLATFORMS="cpu",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE=f"{'v5lite' if 'v5e' in target else 'v6e'}"
        f"{'pod' if 'v5e' in target else ''}-4",
        TPU_WORKER_HOSTNAMES="localhost",
        # A process beside this one may compile, too: there is no TPU to share.
        ALLOW_MULTIPLE_LIBTPU_LOAD="true",
    )
    import counting
    import jax

    jax.config.update("jax_enable_x64", True)
    # There is no public way to compile a program that another framework made.
    from jax._src.interpreters import mlir as jax_mlir
    from jax._src.lib import xla_client
    from jax.experimental import topologies
    from jaxlib.mlir import ir

    if kind == "TPU":
        topology = topologies.get_topology_desc(platform="tpu", topology_name=target)
    else:
        topology = topologies.get_topology_desc(
            platform="cuda",
            topology_name=target,
            topology="1x1x1",
            target_config=_GPUS[target],
        )
    device = topology.devices[0]
    computation = xla_client.XlaComputation(path.read_bytes())
    text = xla_client._xla.mlir.xla_computation_to_mlir_module(computation)
    # Seeds that a program hands back are copied there, by an operation that this compiler
    # does not take: one that does nothing stands for it.
    text = re.sub(
        r"= mhlo\.copy (%\S+) : (tensor<\S+>)",
        r"= stablehlo.reshape \1 : (\2) -> \2",
        text,
    )
    with jax_mlir.make_ir_context():
        module = ir.Module.parse(text)
    began = time.perf_counter()
    program = device.client.compile(
        module, xla_client.DeviceList((device,)), xla_client.CompileOptions()
    )
    seconds = time.perf_counter() - began
    memory = program.get_compiled_memory_stats()
    found = counting.count(program.hlo_modules()[0].to_string())
    return {
        "seconds": round(seconds, 1),
        "arguments": memory.argument_size_in_bytes,
        "output": memory.output_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "kernels": found.kernels,
        "bytes": found.bytes,
        "bytes_are_complete": found.is_complete,
    }


def in_a_process(path: pathlib.Path, device: str, limit: float) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(path), "--devices", device]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"error": f"not compiled within {limit:.0f} s"}
    if done.returncode == 0:
        return dict(json.loads(done.stdout.splitlines()[-1]))
    lines = [
        line for line in done.stderr.splitlines() if re.search(r"rror|RESOURCE", line)
    ]
    return {"error": (lines or [f"exit status {done.returncode}"])[-1][:300]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--results", type=pathlib.Path)
    parser.add_argument("--devices", default=",".join(DEVICES))
    parser.add_argument("--only", default="", help="part of the programs' names")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for each")
    parser.add_argument("--one", type=pathlib.Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    devices = options.devices.split(",")
    if options.one:
        print(json.dumps(compiled(options.one, *DEVICES[devices[0]])))
        return
    programs = json.loads((options.folder / "programs.json").read_text())
    results: dict[str, Any] = {}
    if options.results and options.results.exists():
        before = json.loads(options.results.read_text())
        results = {program["name"]: program for program in before}
    for program in programs:
        known = results.setdefault(program["name"], {"name": program["name"]})
        known.update(least_bytes=program["least_bytes"], beside=program["beside"])
        known.setdefault("devices", {})
    for device in devices:
        for program in programs:
            exported = program.get(DEVICES[device][0])
            if exported is None or options.only not in program["name"]:
                continue
            cells = results[program["name"]]["devices"]
            cells[device] = _cell(options, exported, device, cells.get(device, {}))
            print(program["name"], device, cells[device], flush=True)
            if options.results:
                options.results.parent.mkdir(parents=True, exist_ok=True)
                found = [known for known in results.values() if known["devices"]]
                options.results.write_text(json.dumps(found, indent=1) + "\n")


def _cell(
    options: argparse.Namespace,
    exported: dict[str, str],
    device: str,
    before: dict[str, Any],
) -> dict[str, Any]:
    if "error" in exported:
        return {"error": f"not exported: {exported['error']}"}
    path = options.folder / exported["file"]
    program = digest(path)
    if before.get("program") == program and "seconds" in before:
        return before
    return {"program": program, **in_a_process(path, device, options.limit)}


if __name__ == "__main__":
    main()
