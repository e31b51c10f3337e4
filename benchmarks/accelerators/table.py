"""Prints what `compile.py` found as a table in Markdown.

    python benchmarks/accelerators/table.py benchmarks/accelerators/results/compiled.json \\
        --page docs/accelerators.md

For each device: temporary memory over that of the output (of the ordinary program, where
one stands beside), kernels, and bytes accessed over the least possible.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Any

BEGIN, END = "<!-- compiled -->", "<!-- end of compiled -->"


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path, help="write it there")
    options = parser.parse_args()
    found = table(json.loads(options.results.read_text()))
    print(found)
    if options.page:
        text = options.page.read_text()
        before, _, rest = text.partition(BEGIN)
        options.page.write_text(
            f"{before}{BEGIN}\n{found}\n{END}{rest.partition(END)[2]}"
        )


if __name__ == "__main__":
    main()
