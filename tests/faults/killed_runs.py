"""Runs a small resumable `fit` in child processes, and causes a fault in each child.

`python killed_runs.py FOLDER 3 1 1` completes a run despite 3 kills and 1 full disk,
and compares it with a run without faults. Then the program starts 1 pair of processes
that train in the same folder. Before noise is used, the program records a digest of it
outside of the run's folder, and `check_uses` compares the digests. The plan is bound to
a ledger, which must contain each run exactly once (`check_ledger`).

The program imports TensorFlow and then forks its children before TensorFlow runs any
operation. Therefore, no child needs to import TensorFlow again.
"""

import collections
import hashlib
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_BANDMF_CACHE"] = "off"

import keras
import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "shared"))
from children import finish, killer, start
from small_models import NUM_EXAMPLES, backup_in, data, make_private_model
from small_plans import small_plan

import tf_bandmf
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run.noising import Noising
from tf_bandmf.ledger import hooks

BATCH_SIZE, EPOCHS, NUM_STEPS = 6, 3, 12


def ledger_of(folder):
    """Opens the ledger in the parent of a run's folder, and adds the data set to it."""
    folder = folder.parent
    ledger = tf_bandmf.Ledger(f"sqlite:///{folder}/privacy.db")
    ledger.add_dataset("examples", epsilon=1000.0, delta=1e-5)
    return ledger


def make_plan(folder=None):
    # Balls-in-bins sampling has a secret seed, so the run has more than one secret.
    options = {"sampling": "balls-in-bins", "noise_multiplier": 1.0}
    plan = small_plan("bsr:3", NUM_EXAMPLES, BATCH_SIZE, EPOCHS, **options)
    return plan if folder is None else ledger_of(folder).bind(plan, "examples")


def make_model(plan):
    return make_private_model(plan, keras.optimizers.Adam(0.05), jit_compile=False)


def report_uses(model, report):
    """Makes each step report its key, number, and digests of its input and output."""
    optimizer, real = model.optimizer, Noising.noisy

    def digest(*arrays):
        content = hashlib.blake2b(digest_size=16)
        for array in arrays:
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()

    def reported(self, sums, scales, number, *more):
        noisy = real(self, sums, scales, number, *more)

        def note(step, *arrays):
            half = len(arrays) // 2
            key = hooks.name_of(optimizer.run.secrets.key)[:16]
            report(f"{key} {step} {digest(*arrays[:half])} {digest(*arrays[half:])}")
            return step

        given = [number, *sums, *noisy.gradients]
        noted = tf.numpy_function(note, given, tf.int64)
        with tf.control_dependencies([noted]):
            gradients = [tf.identity(gradient) for gradient in noisy.gradients]
        return noisy._replace(gradients=gradients)

    Noising.noisy = reported


def train(folder, report):
    """Trains to the end; resumes the run if it was interrupted, as a user would."""
    plan = make_plan(folder)
    model = make_model(plan)
    report_uses(model, report)
    model.fit(
        plan.batches(*data),
        epochs=EPOCHS,
        verbose=0,
        private_state=folder / "run.private",
        callbacks=[backup_in(folder / "backup")],
    )
    assert model.optimizer.steps_taken == NUM_STEPS
    content = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights()))
    (folder / "final").write_text(content.hexdigest())


def ended(child, read_end):
    """Waits for a child; returns how it ended, its uses of noise keys, and its error.

    The first value is "done", "error", "killed" or "crashed".
    """
    code, lines, error = finish(child, read_end)
    ways = {0: "done", 1: "error", -signal.SIGKILL: "killed"}
    ways |= dict.fromkeys((-signal.SIGSEGV, -signal.SIGABRT), "crashed")
    return ways[code], [line.split() for line in lines], error


def check_uses(uses):
    """Checks that all steps used one key, and added their noise to only one sum."""
    keys = {use[0] for use in uses}
    assert len(keys) == 1, f"{len(keys)} keys"
    sums = collections.defaultdict(set)
    for _, step, clipped, noisy in uses:
        sums[int(step)].add((clipped, noisy))
    twice = {step: contents for step, contents in sums.items() if len(contents) > 1}
    assert not twice, f"noise that met different data: {twice}"
    assert set(sums) == set(range(NUM_STEPS))


def check_ledger(folder, runs):
    """Checks that the ledger is intact and contains exactly `runs` runs."""
    ledger = ledger_of(folder)
    kinds = collections.Counter(entry.kind for entry in ledger.history())
    assert kinds["begun"] == runs, kinds
    assert kinds["steps"] >= 1, kinds
    assert ledger.balance("examples").runs == runs
    assert ledger.verify() == []


class Faults:
    """Compares runs that have faults with a run that has none.

    All runs use the same secrets.

    Args:
      folder: the folder in which each run gets a subfolder.
    """

    def __init__(self, folder):
        self._folder = folder
        self._begin()
        began = time.monotonic()
        run = self.beginning("straight")
        way, self._uses, error = ended(*start(lambda report: train(run, report)))
        assert way == "done", error
        self.seconds = time.monotonic() - began
        self._final = (run / "final").read_text()

    def _begin(self):
        from tf_bandmf.keras.resume.private_file import PrivateFile

        run = self._folder / "first"
        run.mkdir()

        def first(report):
            real = PrivateFile.write

            def write_and_end(self):
                real(self)
                os._exit(0)

            PrivateFile.write = write_and_end
            train(run, report)

        way, _, error = ended(*start(first))
        assert way == "done", error

    def beginning(self, name):
        """Creates the folder of a new run, and copies the shared secrets into it."""
        run = self._folder / name
        run.mkdir()
        shutil.copy2(self._folder / "first" / "run.private", run / "run.private")
        return run

    def end(self, run, uses):
        """Completes the run, and checks that it equals the run without faults."""
        way, last, error = ended(*start(lambda report: train(run, report)))
        assert way == "done", error
        check_uses([*uses, *last, *self._uses])
        assert (run / "final").read_text() == self._final
        left = {path.name for path in run.iterdir()}
        assert left == {"run.private", "run.private.lock", "backup", "final"}, left

    def interrupted(self, kills, full_disks):
        """Trains with `kills` kills and `full_disks` full disks, in random order."""
        run, uses, endings = self.beginning("run"), [], collections.Counter()
        faults = [self._kill] * kills + [self._fill_disk] * full_disks
        random.Random(kills).shuffle(faults)
        for number, fault in enumerate(faults):
            if (run / "final").exists():
                # The run is complete, so start a new one for the next fault.
                shutil.rmtree(run)
                run = self.beginning("run")
            way, used, error = fault(run, random.Random(number))
            assert way != "error" or "File too large" in error, error
            # A full disk may crash the child: HDF5 can crash if it cannot write.
            assert way != "killed" or fault == self._kill
            assert way != "crashed" or fault == self._fill_disk
            endings[way] += 1
            uses += used
            print(f"fault {number + 1} of {len(faults)}: {way}", flush=True)
        self.end(run, uses)
        check_ledger(run, 1)
        return endings

    def _kill(self, run, rng):
        """Kills a child at a random time or just before it writes to the disk.

        The child's clock is shifted by up to 32 years, which must make no difference.
        """
        shift = rng.choice([0.0, -1e9, 1e9, -3600.0])
        moment = rng.choice([None, rng.randrange(1, 200)])

        def child(report):
            real_time = time.time
            time.time = lambda: real_time() + shift
            if moment is not None:
                die_at_a_write(moment)
            train(run, report)

        process, pipe = start(child)
        if moment is None:
            # This process has not waited for the child yet, so the child's process id
            # is valid even if the child has ended.
            time.sleep(rng.uniform(0.2, 0.8) * self.seconds)
            os.kill(process, signal.SIGKILL)
        return ended(process, pipe)

    def _fill_disk(self, run, rng):
        """Simulates a full disk by a random limit on the size of the child's files."""
        limit = int(10 ** rng.uniform(2.5, 4.5))

        def child(report):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            train(run, report)

        return ended(*start(child))

    def two_processes(self, count):
        """Trains in one folder from two processes at the same time, `count` times."""
        run, uses, endings = self._folder / "two", [], collections.Counter()
        run.mkdir()
        for number in range(count):
            children = []
            for which in range(2):

                def child(report, which=which, number=number):
                    time.sleep(random.Random(2 * number + which).uniform(0.0, 0.3))
                    train(run, report)

                children.append(start(child))
            for process in children:
                way, used, error = ended(*process)
                assert way == "done" or "Another process uses" in error, error
                uses += used
                endings[way] += 1
            shutil.rmtree(run / "backup")
        check_uses(uses)
        check_ledger(run, 2)
        return endings


def die_at_a_write(moment):
    """Makes this process kill itself just before its `moment`-th write to the disk."""
    import h5py

    counted = killer(moment)
    for name in ("fsync", "replace", "unlink", "fdopen"):
        setattr(os, name, counted(getattr(os, name)))
    h5py.Group.create_dataset = counted(h5py.Group.create_dataset)
    h5py.File.close = counted(h5py.File.close)
    Journal.append = counted(Journal.append)


if __name__ == "__main__":
    where, numbers = pathlib.Path(sys.argv[1]), [int(n) for n in sys.argv[2:]]
    all_faults = Faults(where)
    results = [
        all_faults.interrupted(*numbers[:2]),
        all_faults.two_processes(numbers[2]),
    ]
    (where / "endings").write_text(json.dumps(results))
