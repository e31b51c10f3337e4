"""Deploys Flower on one machine, and kills some processes during the run.

    .venv-flower/bin/python federated/examples/flower/deploy.py --rounds 30

Each SuperNode is a device with one speaker's lines and a separate store. The script
kills the SuperLink and its server with `kill -9`, and restarts them. It also kills two
SuperNodes, and restarts only one of them. All processes listen only on 127.0.0.1,
without TLS. The SuperLink stores the devices' updates only in memory, because it runs
without `--database`. Only the user who runs the script can read its output files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

if __name__ == "__main__":
    from tf_bandmf.cli.native_logs import drop_native_logs

    drop_native_logs()

import warm

import tf_bandmf
from tf_bandmf.files.journal import Journal
from tf_bandmf_federated.device_policy import DevicePolicy

HERE = pathlib.Path(__file__).parent
BIN = pathlib.Path(sys.executable).parent


class Deployment:
    """Starts and kills the processes of a deployment, each in its own process group.

    Args:
      folder: folder for all files of the deployment.
      port: the SuperLink's port. The following ports are for the SuperNodes.
      text: path of a file of speeches, or "" for random text.
      cold: if True, a Python process is started for each message to a device.
      app: folder of the Flower app.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        port: int,
        text: str,
        cold: bool = False,
        app: pathlib.Path = HERE,
    ) -> None:
        self.folder, self.port, self.text, self.app = folder, port, text, app
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        # This is the number of progress lines that have been printed.
        self.shown = 0
        home = folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{port}"\ninsecure = true\n'
        )
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "SPEAKERS_POLICY": str(folder / "policy.json"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
            # Look for new tasks at intervals of 0.2 seconds.
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OPENBLAS_NUM_THREADS": "1",
        }
        self.programs = BIN
        if not cold:
            self.programs = warm.write_programs(folder)
            for name in ("forked", "warm.socket"):
                (folder / name).unlink(missing_ok=True)
            self.start("warm", sys.executable, str(HERE / "warm.py"), str(folder))

    def start(self, name: str, *command: str, **environment: str) -> None:
        """Starts a program (a path, or a name in `BIN`) with output to NAME.log."""
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**self.environment, **environment},
                start_new_session=True,
            )

    def start_link(self, *options: str) -> None:
        """Starts the SuperLink, which starts the server as its child process."""
        self.start(
            "superlink",
            "flower-superlink",
            "--insecure",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--disable-runtime-dependency-installation",
            *options,
        )

    def start_node(self, number: int) -> None:
        """Starts the SuperNode of a device."""
        path, programs = self.environment["PATH"], str(self.programs)
        store = self.folder / "devices" / str(number)
        self.start(
            f"device {number}",
            f"{programs}/flower-supernode",
            "--insecure",
            f"--superlink=127.0.0.1:{self.port}",
            "--host=127.0.0.1",
            f"--port={self.port + 1 + number}",
            f'--node-config=speaker={number} store="{store}" text="{self.text}"',
            PATH=f"{programs}:{path}",
        )

    def kill(self, name: str) -> None:
        """Kills a process and its descendants with SIGKILL, so they cannot clean up."""
        process = self.processes.pop(name)
        for pid in _family(process.pid, warm.parents(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def kill_now(self, name: str) -> None:
        """Kills a process with `kill`, and prints the time and the process's name."""
        self.kill(name)
        print(f"{time.strftime('%H:%M:%S')} kill -9 {name}", flush=True)

    def submit(
        self, rounds: int, per_round: int, *options: str, **config: float
    ) -> None:
        """Calls `flwr run`, up to 20 times, until the SuperLink accepts the run.

        Args:
          rounds: number of rounds of the run.
          per_round: number of devices per round.
          *options: further options of `flwr run`.
          **config: further entries of the run's configuration.
        """
        given = (
            f'folder="{self.folder}" rounds={rounds} per-round={per_round} '
            f'text="{self.text}" '
        )
        given += " ".join(
            f"{key.replace('_', '-')}={value}" for key, value in config.items()
        )
        command = [str(BIN / "flwr"), "run", str(self.app), "--run-config", given]
        command += options
        for _ in range(20):
            done = subprocess.run(
                command,
                env=self.environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode == 0 and "rror" not in done.stdout:
                return
            time.sleep(2.0)
        raise SystemExit(f"flwr run failed: {done.stdout}\n{done.stderr}")

    def progress(self) -> list[list[str]]:
        """Returns the round number, time, loss and accuracy of each completed round."""
        path = self.folder / "progress"
        if not path.exists():
            return []
        return [line.split() for line in path.read_text().splitlines()]

    def wait_for(self, rounds: int, limit: float) -> None:
        """Waits up to `limit` seconds for `rounds` rounds; prints loss and accuracy."""
        end = time.monotonic() + limit
        while True:
            lines = self.progress()
            for line in lines[self.shown :]:
                print(
                    f"round {line[0]}: loss {line[2]}, accuracy {line[3]}", flush=True
                )
            self.shown = len(lines)
            if lines and int(lines[-1][0]) >= rounds:
                return
            if time.monotonic() > end:
                raise SystemExit(
                    f"The run did not reach {rounds} rounds in {limit:.0f} s. See *.log."
                )
            time.sleep(0.5)

    def summary(self) -> str:
        """Waits for the server's privacy report, and returns the last lines of it."""
        report = self.folder / "privacy.md"
        while not report.exists():
            time.sleep(0.5)
        return "\n".join(report.read_text().splitlines()[-12:])

    def end(self) -> None:
        """Kills all processes of the deployment that are still running."""
        for name in list(self.processes):
            self.kill(name)


def _family(pid: int, forked: list[tuple[int, int]]) -> list[int]:
    """Returns the ids of a process and all its descendants, even in other sessions.

    Args:
      pid: id of the process.
      forked: (process id, parent id) pairs, for the processes that `warm.py` forked.
    """
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    running = dict(map(int, line.split()) for line in listed.stdout.splitlines())
    parents = [*running.items(), *(pair for pair in forked if pair[0] in running)]
    family = [pid]
    # The loop also visits the members that it appends.
    for member in family:
        family.extend(child for child, parent in parents if parent == member)
    return family


def write_plan(
    folder: pathlib.Path, rounds: int, separation: int, epsilon: float
) -> None:
    """Writes the plan for the server, and the policy for the devices."""
    plan = tf_bandmf.plan(
        f"banded:{separation}",
        epsilon=epsilon,
        delta=1e-5,
        num_steps=rounds,
        sampling=tf_bandmf.MinSep(separation, -(-rounds // separation)),
        l2_norm_clip=0.5,
    )
    plan.save(str(folder / "plan.json"))
    DevicePolicy.from_plan(plan).save(str(folder / "policy.json"))


def participations(folder: pathlib.Path) -> list[int]:
    """Returns the number of participations that each device's store has recorded."""
    stores = (folder / "devices").glob("*/*.device")
    records = [json.loads(Journal(str(path)).read()[0]) for path in sorted(stores)]
    return [record["participations"] for record in records]


def main() -> None:
    """Deploys Flower, kills processes, and prints the result of the completed run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", default="flower-output", help="folder, which is replaced"
    )
    parser.add_argument(
        "--go-on", action="store_true", help="continue the run in --out"
    )
    parser.add_argument(
        "--stop-after", type=int, help="kill -9 all processes after this round"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--per-round", type=int, default=2)
    parser.add_argument("--separation", type=int, default=3)
    parser.add_argument("--epsilon", type=float, default=100.0)
    parser.add_argument("--data", default="", help="file of speeches; default: random")
    parser.add_argument("--port", type=int, default=18120)
    parser.add_argument(
        "--cold",
        action="store_true",
        help="start a Python process for each message to a device",
    )
    parser.add_argument("--no-kills", action="store_true")
    options = parser.parse_args()
    # Child processes inherit this mask, so only the owner can read their files.
    os.umask(0o077)
    folder = pathlib.Path(options.out).resolve()
    if not options.go_on:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    rounds = options.rounds
    if not options.go_on:
        write_plan(folder, rounds, options.separation, options.epsilon)
    text = str(pathlib.Path(options.data).resolve()) if options.data else ""
    run = Deployment(folder, options.port, text, options.cold)
    began = time.monotonic()
    # On SIGTERM, the program raises SystemExit, so that `finally` kills its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        run.start_link()
        for number in range(options.devices):
            run.start_node(number)
        run.submit(rounds, options.per_round)
        if options.stop_after is not None:
            run.wait_for(options.stop_after, 3600.0)
            print(f"kill -9 everything after {options.stop_after} rounds")
            return
        if not (options.go_on or options.no_kills):
            run.wait_for(rounds // 4, 1200.0)
            run.kill_now("device 0")
            run.wait_for(rounds // 2, 1200.0)
            # After two seconds, the next round has begun and will be interrupted.
            time.sleep(2.0)
            run.kill_now("superlink")
            # This device is not started again.
            run.kill_now("device 1")
            run.start_link()
            # The new SuperLink does not know the old SuperNodes. Start new ones.
            for number in range(options.devices):
                if number != 1:
                    if f"device {number}" in run.processes:
                        run.kill(f"device {number}")
                    run.start_node(number)
            run.submit(rounds, options.per_round)
        run.wait_for(rounds, 3600.0)
        summary = run.summary()
    finally:
        run.end()
    print(f"{rounds} rounds in {time.monotonic() - began:.0f} s")
    print(f"participations by the devices' records: {participations(folder)}")
    print(summary)


if __name__ == "__main__":
    main()
