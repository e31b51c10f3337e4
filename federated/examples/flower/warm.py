"""Forks Flower's device programs from one process that has already imported them.

Flower starts a Python process for each message to a device. This takes 2 seconds of
CPU time, almost all of them for imports. Real devices can afford it, but eight devices
that share two CPUs make hardly any progress. Therefore `deploy.py` writes small
programs with the names of Flower's programs, and puts them first on the nodes' PATH.
Each small program sends a request to the process of this script, which forks a child.
The child runs Flower's program with the arguments and output streams of the small
program.

    python warm.py FOLDER    # serves requests from the programs in FOLDER/bin
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import sys

PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
_CALL = """#!{python} -IS
import json, os, socket, sys, time
for attempt in range(1200):
    server = socket.socket(socket.AF_UNIX)
    try:
        server.connect({path!r})
        break
    except (FileNotFoundError, ConnectionRefusedError):  # it is still importing
        time.sleep(0.1)
name = os.path.basename(sys.argv[0])
askers = [os.getpid(), os.getppid()]
call = json.dumps([name, sys.argv[1:], askers, os.environ["PATH"]])
socket.send_fds(server, [call.encode()], [1, 2])
server.recv(1)
"""


def write_programs(folder: pathlib.Path) -> pathlib.Path:
    """Writes the small programs, and returns the folder to put first on PATH."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    for name in PROGRAMS:
        call = _CALL.format(python=sys.executable, path=str(folder / "warm.socket"))
        (place / name).write_text(call)
        (place / name).chmod(0o700)
    return place


def parents(folder: pathlib.Path) -> list[tuple[int, int]]:
    """Returns (id of a forked process, id of the process that requested it) pairs."""
    path = folder / "forked"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(pid), int(parent)) for pid, parent in map(str.split, lines)]


def serve(folder: pathlib.Path) -> None:
    """Serves fork requests until it is killed."""
    import flwr.supercore.cli
    import flwr.supernode.cli
    import flwr.supernode.runtime.run_clientapp

    import tf_bandmf_federated.flower.client  # noqa: F401

    programs = {
        "flower-supernode": flwr.supernode.cli.flower_supernode,
        "flower-superexec": flwr.supercore.cli.flower_superexec,
        "flwr-clientapp": flwr.supernode.cli.flwr_clientapp,
    }
    # If SIGCHLD is ignored, the system removes children that have ended.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(folder / "warm.socket"))
    server.listen(64)
    while True:
        connection, _ = server.accept()
        call, outputs, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        name, arguments, askers, path = json.loads(call)
        child = os.fork()
        if child:
            with open(folder / "forked", "a", encoding="utf-8") as file:
                file.writelines(f"{child} {asker}\n" for asker in askers)
            for descriptor in outputs:
                os.close(descriptor)
            connection.close()
            continue
        server.close()
        connection.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.dup2(outputs[0], 1)
        os.dup2(outputs[1], 2)
        sys.argv, os.environ["PATH"] = [name, *arguments], path
        status = 1
        try:
            programs[name]()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(bool(end.code))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


if __name__ == "__main__":
    serve(pathlib.Path(sys.argv[1]))
