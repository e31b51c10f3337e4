"""Prints what `compile.py` and `on_device.py` found as tables in Markdown.

    python benchmarks/accelerators/table.py benchmarks/accelerators/results/compiled.json \\
        --page docs/accelerators.md
    python benchmarks/accelerators/table.py --page docs/accelerators.md \\
        --measured benchmarks/accelerators/results/measured/*.json

What was compiled, for each device: temporary memory over that of the output (of the
ordinary program, where one stands beside), kernels, and bytes accessed over the least
possible. What was measured: milliseconds, and how many times the ordinary step's.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

BEGIN, END = "<!-- compiled -->", "<!-- end of compiled -->"
MEASURED = "<!-- measured -->", "<!-- end of measured -->"


def cell(program: dict[str, Any], found: dict[str, Any] | None, by_name: Any) -> str:
    if found is None:
        return "-"
    if "error" in found:
        return "not exported" if "not exported" in found["error"] else "not compiled"
    device = found["device"]
    beside = by_name.get(program["beside"], {}).get("devices", {}).get(device)
    whole, parts = found["output"], []
    if beside and "error" not in beside:
        whole = beside["temporary"]
    size = found["temporary"]
    parts.append(f"{size / whole:.3g}" if whole else f"{size:,} bytes beside none")
    parts.append(str(found["kernels"]))
    if program["least_bytes"]:
        more = "" if found["bytes_are_complete"] else "≥ "
        parts.append(f"{more}{found['bytes'] / program['least_bytes']:.3g}")
    return ", ".join(parts)


def table(programs: list[dict[str, Any]]) -> str:
    by_name = {program["name"]: program for program in programs}
    devices: list[str] = []
    for program in programs:
        for device, found in program["devices"].items():
            found["device"] = device
            if device not in devices:
                devices.append(device)
    lines = [
        "| program | " + " | ".join(devices) + " |",
        "|---" * (len(devices) + 1) + "|",
    ]
    for program in programs:
        cells = [cell(program, program["devices"].get(d), by_name) for d in devices]
        lines.append(f"| {program['name']} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def measured(results: list[dict[str, Any]]) -> str:
    """Two tables of what `on_device.py` wrote: noise, and steps."""
    noise = [sizes for found in results for sizes in found["noise"]]
    kinds = dict.fromkeys(kind for sizes in noise for kind in sizes["seconds"])
    heads = [f"{sizes['parameters']:.0e}" for sizes in noise]
    lines = [f"| noise of d = | {' | '.join(heads)} |", "|---" * (len(noise) + 1) + "|"]
    for kind in kinds:
        cells = [_milliseconds(sizes["seconds"].get(kind)) for sizes in noise]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += ["", "| model, batch | ordinary | DP-SGD | λCGD |", "|---" * 4 + "|"]
    for group, prefix in {"steps": "", "epochs": "`fit` of "}.items():
        for found in (entry for file in results for entry in file[group]):
            seconds, ratios = found["seconds"], found["ratio_to_ordinary"]
            cells = [_milliseconds(seconds["ordinary"])] + [
                f"{_milliseconds(seconds[kind])}, {ratios[kind]:.2f}"
                for kind in ("identity", "lambda_cgd")
            ]
            name = f"{prefix}{found['model']}, {found['batch']}"
            lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path, nargs="?", help="compiled.json")
    parser.add_argument("--measured", type=pathlib.Path, nargs="+", default=[])
    parser.add_argument("--page", type=pathlib.Path, help="write it there")
    options = parser.parse_args()
    made = []
    if options.results:
        made.append((BEGIN, END, table(json.loads(options.results.read_text()))))
    if options.measured:
        files = [json.loads(path.read_text()) for path in options.measured]
        made.append((*MEASURED, measured(files)))
    for begin, end, found in made:
        print(found)
        if options.page:
            text = options.page.read_text()
            before, _, rest = text.partition(begin)
            after = rest.partition(end)[2]
            options.page.write_text(f"{before}{begin}\n{found}\n{end}{after}")


if __name__ == "__main__":
    main()
