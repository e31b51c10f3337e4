"""Cohorts of eligible, available clients; saved, restored, repeated."""

import asyncio
import collections
import copy
import json

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from hypothesis import strategies as st
from linear import model_fn

import tf_bandmf
from tf_bandmf_federated import (
    Always,
    Availability,
    Diurnal,
    Independent,
    MinSepDataSource,
    MinSepIterator,
    build_fed_avg,
    measure_participation,
)

N, B, K = 10, 3, 2
NUM_CLIENTS = 12


def make_plan(n=N, b=B, k=K, **options):
    return tf_bandmf.plan(
        "lambda_cgd",
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=n,
        participation=tf_bandmf.MinSep(b, k),
        **options,
    )


def examples(value):
    x = np.full([4, 3], value, np.float32)
    return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def make_clients(count=NUM_CLIENTS):
    return {f"c{i:03d}": (lambda i=i: examples(i)) for i in range(count)}


PLAN = make_plan()
CLIENTS = make_clients()


def source_of(plan=PLAN, clients=None, **options):
    options.setdefault("seed", 0)
    return MinSepDataSource(CLIENTS if clients is None else clients, plan, **options)


def cohorts(iterator, size, rounds):
    found = []
    for _ in range(rounds):
        iterator.select(size)
        found.append(iterator.cohort)
    return found


def tags(dataset):
    """Tags and value of a client's data: the same in all elements."""
    rows = {
        (int(e["last_round"]), int(e["participations"]), float(e["example"][0][0, 0]))
        for e in dataset
    }
    (row,) = rows
    return row


# --- What it selects.


def test_delivers_what_each_device_knows_of_its_past():
    source = source_of()
    iterator = source.iterator()
    assert source.federated_type == iterator.federated_type
    member = source.federated_type.member
    history = collections.defaultdict(list)
    for round_number in range(6):
        assert iterator.round_number == round_number
        datasets = iterator.select(4)
        assert iterator.cohort_round == round_number
        assert len(datasets) == len(set(iterator.cohort)) == 4
        for name, dataset in zip(iterator.cohort, datasets):
            element_type = tff.types.tensorflow_to_type(dataset.element_spec)
            assert member.is_assignable_from(tff.SequenceType(element_type))
            past = history[name]
            last = past[-1] if past else -1
            assert tags(dataset) == (last, len(past), float(name[1:]))
            past.append(round_number)
    assert max(map(len, history.values())) == 2


@hypothesis.settings(deadline=None, derandomize=True, max_examples=12)
@hypothesis.given(
    st.lists(st.sets(st.integers(0, 5)), min_size=N, max_size=N),
    st.integers(1, 3),
    st.integers(0, 100),
)
@pytest.mark.invariant(2)
def test_selected_cohorts_are_eligible_and_available(rounds, size, seed):
    clients = make_clients(6)
    names = sorted(clients)
    source = source_of(
        clients=clients,
        seed=seed,
        on_shortage="fewer",
        availability=lambda t, name: names.index(name) in rounds[t],
    )
    iterator = source.iterator()
    history = collections.defaultdict(list)
    short = 0
    for round_number, present in enumerate(rounds):
        allowed = {
            name
            for name in (names[i] for i in present)
            if len(history[name]) < K
            and (not history[name] or round_number - history[name][-1] >= B)
        }
        iterator.select(size)
        cohort = iterator.cohort
        assert set(cohort) <= allowed
        assert len(cohort) == min(size, len(allowed))
        short += len(allowed) < size
        for name in cohort:
            history[name].append(round_number)
    assert iterator.short_rounds == short
    measured = iterator.measured()
    assert measured.min_separation is None or measured.min_separation >= B
    assert measured.max_participations <= K


def test_every_client_is_as_likely_as_any_other(monkeypatch):
    # 3 of 12 clients, 200 times: each 50 times on average, with a standard deviation of
    # 6.2. Five of these, for 12 clients and positions: false alarm below 1e-4, and the
    # seeds are fixed.
    monkeypatch.setattr("secrets.token_bytes", np.random.default_rng(0).bytes)
    source = source_of(seed=None)
    selections = [cohorts(source.iterator(), 3, 1)[0] for _ in range(200)]
    counts = collections.Counter(name for cohort in selections for name in cohort)
    assert all(abs(counts[name] - 50) < 5 * 6.2 for name in CLIENTS)
    # First of the cohort: 16.7 times on average, standard deviation 3.9.
    firsts = collections.Counter(cohort[0] for cohort in selections)
    assert all(abs(firsts[name] - 200 / 12) < 5 * 3.9 for name in CLIENTS)


def test_seed_gives_the_same_cohorts_and_none_gives_fresh_ones():
    # Different by chance except with probability 220^-4 < 1e-9.
    first = cohorts(source_of(seed=5).iterator(), 3, 4)
    assert cohorts(source_of(seed=5).iterator(), 3, 4) == first
    assert cohorts(source_of(seed=6).iterator(), 3, 4) != first
    fresh = source_of(seed=None)
    assert cohorts(fresh.iterator(), 3, 4) != cohorts(fresh.iterator(), 3, 4)


def test_takes_client_data_of_tff_and_preprocesses_it():
    data = {
        name: {"x": np.full([5, 2], i, np.float32)}
        for i, name in enumerate(["b", "a", "c"])
    }
    source = source_of(
        clients=tff.simulation.datasets.TestClientData(data),
        preprocess=lambda dataset: dataset.batch(2),
    )
    iterator = source.iterator()
    datasets = iterator.select(3)
    assert source.client_ids == ("a", "b", "c")
    for name, dataset in zip(iterator.cohort, datasets):
        batches = [e["example"]["x"].numpy() for e in dataset]
        assert [len(batch) for batch in batches] == [2, 2, 1]
        assert batches[0][0, 0] == data[name]["x"][0, 0]


def test_takes_the_expected_batch_size_of_the_plan():
    iterator = source_of(make_plan(batch_size=3)).iterator()
    assert len(iterator.select()) == 3
    with pytest.raises(ValueError, match="no expected_batch_size"):
        source_of().iterator().select()


# --- Availability.


@pytest.mark.parametrize(
    "model",
    [
        Always(),
        Independent(0.3),
        Diurnal(8, peak=0.9, trough=0.1),
        Diurnal(8, phases={name: 0.25 for name in CLIENTS}),
    ],
)
def test_clients_are_there_as_often_as_the_model_says(model):
    # 2,000 rounds of 12 clients, 6 standard deviations per client: false alarm < 1e-7.
    ids, rounds, seed = tuple(CLIENTS), 2000, bytes(range(32))
    expected = np.array([model.probabilities(t, ids) for t in range(rounds)])
    found = np.array([model.present(t, ids, seed) for t in range(rounds)])
    assert np.all((expected >= 0) & (expected <= 1))
    deviation = np.sqrt((expected * (1 - expected)).sum(axis=0))
    assert np.all(
        np.abs(found.sum(axis=0) - expected.sum(axis=0)) <= 6 * deviation + 1e-9
    )
    assert "available" in model.describe() or "diurnal" in model.describe()


def test_diurnal_clients_peak_at_their_hour():
    ids = ("early", "late")
    phases = {"early": 0.25, "late": 0.75}
    model = Diurnal(24, peak=0.8, trough=0.2, phases=phases)
    np.testing.assert_allclose(model.probabilities(6, ids), [0.8, 0.2])
    np.testing.assert_allclose(model.probabilities(18, ids), [0.2, 0.8])
    np.testing.assert_allclose(model.probabilities(30, ids), [0.8, 0.2])
    np.testing.assert_allclose(model.probabilities(0, ids), [0.5, 0.5])
    # Hashed hours: all over the day, or all at one.
    names = tuple(f"client {i}" for i in range(300))
    day = Diurnal(24).probabilities(5, names)
    assert day.min() < 0.05 and day.max() > 0.95
    assert np.ptp(Diurnal(24, spread=0.0).probabilities(5, names)) == 0.0


def test_availability_of_another_kind_or_range_is_refused():
    class Wrong(Availability):
        def probabilities(self, round_number, client_ids):
            return np.full(len(client_ids), 1.5)

        def describe(self):
            return "wrong"

    with pytest.raises(ValueError, match=r"probabilities in \[0, 1\]"):
        source_of(availability=Wrong()).iterator().select(1)
    with pytest.raises(TypeError, match="availability must be"):
        source_of(availability=0.5)
    with pytest.raises(ValueError, match="probability must be"):
        Independent(0.0)
    with pytest.raises(ValueError, match="rounds_per_day"):
        Diurnal(0)
    with pytest.raises(ValueError, match="trough in"):
        Diurnal(24, peak=0.2, trough=0.3)
    with pytest.raises(ValueError, match="spread"):
        Diurnal(24, spread=2.0)
    with pytest.raises(ValueError, match=r"no entry for 1 clients, .* 'b'"):
        Diurnal(24, phases={"a": 0.0}).probabilities(0, ("a", "b"))


# --- Saving, restoring, repeating.

DIURNAL = Diurnal(6, peak=0.9, trough=0.4)


@pytest.mark.invariant(11)
def test_restarted_pass_equals_the_uninterrupted_one():
    source = source_of(
        availability=DIURNAL, on_shortage="fewer", clients=make_clients(16)
    )
    straight = source.iterator()
    saved = []
    for _ in range(N):
        saved.append(straight.to_bytes())
        straight.select(3)
    whole = cohorts(source.iterator(), 3, N)
    for round_number, content in enumerate(saved):
        # As after a restart: another source object, of the same clients.
        if round_number % 4 == 0:
            source = source_of(
                availability=DIURNAL, on_shortage="fewer", clients=make_clients(16)
            )
        restored = source.iterator_from_bytes(content)
        assert restored.round_number == round_number
        rest = cohorts(restored, 3, min(N - round_number, 2))
        assert rest == whole[round_number : round_number + 2]
    restored = source.iterator_from_bytes(straight.to_bytes())
    assert restored.measured() == straight.measured()
    assert restored.short_rounds == straight.short_rounds


def test_seed_of_an_iterator_is_saved_with_it():
    source = source_of(seed=None)
    iterator = source.iterator()
    iterator.select(2)
    restored = source.iterator_from_bytes(iterator.to_bytes())
    assert cohorts(iterator, 2, 3) == cohorts(restored, 2, 3)


@pytest.mark.invariant(11)
def test_repeats_a_round_with_the_same_tags():
    source = source_of()
    iterator = source.iterator()
    with pytest.raises(ValueError, match="nothing to repeat"):
        iterator.repeat()
    for _ in range(5):
        datasets = iterator.select(4)
    before, cohort = iterator.to_bytes(), iterator.cohort
    expected = [tags(dataset) for dataset in datasets]
    assert any(last >= 0 for last, _, _ in expected)
    assert [tags(dataset) for dataset in iterator.repeat()] == expected
    assert iterator.to_bytes() == before
    restored = source.iterator_from_bytes(before)
    assert restored.cohort == cohort
    assert [tags(dataset) for dataset in restored.repeat()] == expected


def test_passes_over_rounds_in_which_nobody_takes_part():
    iterator = source_of(clients=make_clients(3)).iterator()
    iterator.select(3)
    with pytest.raises(ValueError, match="Round 1 needs 3 clients, but 0 of 3"):
        iterator.select(3)
    iterator.skip_to(B)
    assert [tags(dataset)[:2] for dataset in iterator.select(3)] == [(0, 1)] * 3
    with pytest.raises(ValueError, match="only go forward"):
        iterator.skip_to(1)
    with pytest.raises(ValueError, match="only go forward"):
        iterator.skip_to(N + 1)


def test_copies_go_their_own_way_and_share_the_data():
    calls = collections.Counter()

    def make(name):
        calls[name] += 1
        return examples(0)

    clients = {name: (lambda name=name: make(name)) for name in CLIENTS}
    iterator = source_of(clients=clients).iterator()
    iterator.select(4)
    calls.clear()
    copied = copy.deepcopy(iterator)
    assert copied == iterator and not calls
    copied.select(4)
    assert copied != iterator and iterator.round_number == 1
    assert isinstance(copied, MinSepIterator)
    iterator.select(4)
    assert copied == iterator


def test_goes_through_the_program_state_manager_of_tff(tmp_path):
    source = source_of(availability=DIURNAL, on_shortage="fewer")
    iterator = source.iterator()
    iterator.select(3)
    manager = tff.program.FileProgramStateManager(str(tmp_path))
    state = collections.OrderedDict(iterator=iterator, round=np.int32(1))

    async def save_and_load():
        await manager.save(state, 1)
        fresh = collections.OrderedDict(iterator=source.iterator(), round=np.int32(0))
        return await manager.load(1, fresh)

    loaded = asyncio.run(save_and_load())
    assert loaded["iterator"] == iterator
    assert cohorts(loaded["iterator"], 3, 3) == cohorts(iterator, 3, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(plan=make_plan(b=4)), "another plan"),
        (dict(availability=Independent(0.5)), "another availability: every client"),
    ],
)
def test_saved_iterator_of_something_else_is_refused(options, message):
    saved = source_of().iterator().to_bytes()
    with pytest.raises(ValueError, match=message):
        source_of(**options).iterator_from_bytes(saved)


def test_damaged_state_is_refused():
    source = source_of()
    iterator = source.iterator()
    cohorts(iterator, 4, 4)
    saved = iterator.to_bytes()
    assert source.iterator_from_bytes(saved) == iterator
    rng = np.random.default_rng(0)
    for position in rng.integers(0, len(saved), 200):
        changed = bytearray(saved)
        changed[position] ^= 1
        with pytest.raises(ValueError, match=r"damaged|has format"):
            source.iterator_from_bytes(bytes(changed))
    for content in (b"", saved[:-1], b"[]", b"null", b'{"format": 1}'):
        with pytest.raises(ValueError, match="damaged"):
            source.iterator_from_bytes(content)
    other = json.dumps({**json.loads(saved), "format": "2"}).encode()
    with pytest.raises(ValueError, match="has format '2'"):
        source.iterator_from_bytes(other)
    with pytest.raises(TypeError, match=r"source\.iterator"):
        MinSepIterator.from_bytes(saved)


# --- Devices that join and leave.


def take_part(iterator, clients, rounds, size=2):
    """Goes on with other clients; returns the iterator, and who came when."""
    source = source_of(clients=clients, on_shortage="fewer")
    iterator = source.iterator_from_bytes(iterator.to_bytes())
    record = {}
    for _ in range(rounds):
        current = iterator.round_number
        for dataset in iterator.select(size):
            assert {int(e["round"]) for e in dataset} == {current}
        record[current] = iterator.cohort
    return iterator, record


populations = st.lists(
    st.tuples(st.sets(st.sampled_from("abcdefg"), min_size=1), st.integers(1, 4)),
    min_size=1,
    max_size=5,
)


@hypothesis.settings(deadline=None, derandomize=True, max_examples=25)
@hypothesis.given(populations)
@pytest.mark.invariant(2)
def test_devices_that_join_and_leave_keep_the_participation(stages):
    plan_rounds, record = N, {}
    iterator = source_of(clients={"a": CLIENTS["c000"]}).iterator()
    for names, rounds in stages:
        rounds = min(rounds, plan_rounds - iterator.round_number)
        clients = {name: CLIENTS["c000"] for name in sorted(names)}
        iterator, came = take_part(iterator, clients, rounds)
        assert set().union(*map(set, came.values())) <= names
        record.update(came)
    measured = measure_participation(record, iterator.round_number)
    assert iterator.measured() == measured
    assert measured.min_separation is None or measured.min_separation >= B
    assert measured.max_participations <= K


def test_a_device_that_comes_back_goes_on_with_its_record():
    both = {name: CLIENTS["c000"] for name in "ab"}
    iterator, first = take_part(source_of(clients=both).iterator(), both, 1)
    assert sorted(first[0]) == ["a", "b"]
    iterator, _ = take_part(iterator, {"b": CLIENTS["c000"]}, 1)
    # "a" left for round 1; in round 2 it may not come yet, "c" may.
    more = {name: CLIENTS["c000"] for name in "abc"}
    iterator, came = take_part(iterator, more, 2)
    assert came[2] == ("c",) and sorted(came[3]) == ["a", "b"]
    data = dict(zip(iterator.cohort, iterator.repeat()))
    assert tags(data["a"])[:2] == (0, 1)
    # Who left is counted, and its data cannot be had.
    gone = source_of(clients={"c": CLIENTS["c000"]})
    restored = gone.iterator_from_bytes(iterator.to_bytes())
    assert restored.measured() == iterator.measured()
    with pytest.raises(ValueError, match="no more, in this source"):
        restored.repeat()
    restored.count_round(["a"])
    assert restored.measured().max_participations == 3


def test_a_round_is_counted_for_whoever_began_it():
    iterator = source_of().iterator()
    iterator.count_round(["c000", "of an earlier population"])
    assert iterator.measured().num_clients == 2
    with pytest.raises(ValueError, match="a name twice"):
        iterator.count_round(["c001", "c001"])
    with pytest.raises(TypeError, match="must be strings"):
        iterator.count_round([1])


# --- Too few, too many, wrong.


def test_too_few_clients_are_an_error_that_changes_nothing():
    iterator = source_of(
        clients=make_clients(8), availability=lambda t, name: name != "c000"
    ).iterator()
    cohorts(iterator, 3, 2)
    before = iterator.to_bytes()
    message = "Round 2 needs 3 clients, but 1 of 8 .* 7 are available, 2 are eligible"
    with pytest.raises(ValueError, match=message):
        iterator.select(3)
    assert iterator.to_bytes() == before
    assert len(iterator.select(1)) == 1


@pytest.mark.invariant(1)
def test_no_selection_past_the_plans_last_round():
    iterator = source_of(on_shortage="fewer").iterator()
    cohorts(iterator, 1, N)
    with pytest.raises(ValueError, match=f"The plan has {N} rounds"):
        iterator.select(1)


@pytest.mark.parametrize(
    ("size", "rounds", "needed"),
    [(4, None, 20), (5, None, 25), (5, 3, 15), (12, 1, 12), (7, 2, 14)],
)
def test_says_beforehand_that_there_are_too_few_clients(size, rounds, needed):
    # b = 3, k = 2: 3 rounds in a row, and 10 rounds of two participations each.
    enough = source_of(clients=make_clients(needed))
    enough.check_enough_clients(size, rounds)
    with pytest.raises(ValueError, match=f"need at least {needed} clients"):
        source_of(clients=make_clients(needed - 1)).check_enough_clients(size, rounds)


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_number_of_clients_must_be_a_whole_one(k):
    with pytest.raises(ValueError, match="whole number"):
        source_of().iterator().select(k)


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="clients must be"):
        source_of(clients=[examples(0)])
    with pytest.raises(ValueError, match="clients is empty"):
        source_of(clients={})
    with pytest.raises(TypeError, match="must be strings, found 3"):
        source_of(clients={3: lambda: examples(0)})
    with pytest.raises(ValueError, match="on_shortage must be one of"):
        source_of(on_shortage="wait")
    with pytest.raises(ValueError, match="seed must be"):
        source_of(seed=-1)
    amplified = tf_bandmf.plan(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=N,
        participation=tf_bandmf.Poisson(100, 10),
    )
    with pytest.raises(ValueError, match="needs participation=MinSep"):
        source_of(amplified)
    other = {**CLIENTS, "z": lambda: tf.data.Dataset.range(3)}
    with pytest.raises(ValueError, match=r"Client .z. has"):
        source_of(clients=other).iterator().select(len(other))


# --- With the process that trains.


@pytest.mark.slow
def test_the_process_accepts_every_selected_client():
    plan = make_plan(n=8, batch_size=4)
    process = build_fed_avg(model_fn, plan, tff.learning.optimizers.build_sgdm(0.1))
    source = source_of(plan, on_shortage="fewer", availability=lambda t, name: t != 2)
    assert process.next.type_signature.parameter[1].is_assignable_from(
        source.federated_type
    )
    iterator = source.iterator()
    state = process.initialize()
    sizes = []
    for round_number in range(6):
        assert process.round_number(state) == iterator.round_number == round_number
        data = iterator.select()
        output = process.next(state, data)
        state, counts = output.state, output.metrics["aggregator"]
        assert counts["early_clients"] == 0
        assert counts["contributing_clients"] == len(data)
        sizes.append(len(data))
    # 12 clients, 4 at a time, each again after 3 rounds; in round 2 nobody is there.
    assert sizes == [4, 4, 0, 4, 4, 4]
    assert iterator.measured().min_separation == B
