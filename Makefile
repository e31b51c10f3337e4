# make demo and make test set up what they need, once, on a machine with Python 3.11.
PYTHON ?= python3.11
# A test spends most of its time on tracing, which uses one processor. The tests of a file
# share models and plans, so each file runs in one process. Files are not ordered by their
# number of tests, because a file with a single long test would then run last, alone.
JOBS ?= 2
# The summary names tests that take long; see CONTRIBUTING.md for the mark `slow`.
PYTEST := -m pytest --durations=15 --durations-min=5
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Core tests that also run on the federated stack, because the two stacks may compute
# differently there: the contracts cover everything that is registered; NoiseGenerator, the
# samplers' tf.data and the Gram recursion use TensorFlow; optimizers use TensorFlow
# Probability; accountants use dp-accounting and SciPy. Tests of our NumPy code
# (sensitivities, closed forms, Monte Carlo, distributions of samplers) and of combinations
# of these parts are omitted.
BOTH_STACKS := $(addprefix tests/,contracts noise optimize analysis/test_gram_recursion.py \
	$(addprefix accounting/,test_cyclic_poisson.py test_gaussian.py test_outputs.py) \
	$(addprefix sampling/,test_batches.py test_examples_on_disk.py test_padding.py) \
	planning/test_plan.py strategies/test_banded.py test_front_door.py)
# The federated tests in plain Python, which test-main also runs.
ON_MAIN := $(addprefix --ignore=tests/test_,accounting.py budget_ledger.py ledger.py \
	ledger_lock.py report.py secret_words.py)
export TF_CPP_MIN_LOG_LEVEL ?= 2
# Processes find modules compiled: importing TensorFlow then takes half the time.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo docs linkcheck notebooks figures dist test test-main \
	test-federated test-flower test-slow test-python test-next test-wheel accelerators audit lint \
	format clean

demo: .venv/.installed
	.venv/bin/python examples/digits.py

# Builds the site in docs/_build/html; warnings and broken internal links are errors.
docs: .venv/.docs
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	.venv/bin/python docs/check_site.py docs/_build/html

# Checks external links; needs a network.
linkcheck: .venv/.docs
	.venv/bin/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

# Regenerates content of the site from scripts: notebooks with their outputs; pictures and
# the page of benchmarks.
notebooks: .venv/.docs
	.venv/bin/python docs/notebooks/make.py

figures: .venv/.docs
	.venv/bin/python docs/figures/make.py
	.venv/bin/python docs/make_benchmarks.py

test: test-main test-federated test-flower

test-main: .venv/.installed
	.venv/bin/python $(PYTEST) $(PARALLEL) -m "not slow" tests
	cd federated && PYTHONPATH=. ../.venv/bin/python $(PYTEST) $(PARALLEL) -m "not slow" tests

test-federated: .venv-federated/.installed
	.venv-federated/bin/python $(PYTEST) $(PARALLEL) -m "not slow" $(BOTH_STACKS)
	cd federated && ../.venv-federated/bin/python $(PYTEST) $(PARALLEL) -m "not slow" \
		$(ON_MAIN) tests

# Tests of the Flower part, on a grid in one process.
test-flower: .venv-flower/.installed
	cd federated && ../.venv-flower/bin/python $(PYTEST) -m "not slow" tests/flower

test-slow: .venv/.installed .venv-federated/.installed .venv-flower/.installed
	.venv/bin/python $(PYTEST) $(PARALLEL) -m slow tests
	cd federated && PYTHONPATH=. ../.venv/bin/python $(PYTEST) -m slow tests
	.venv-federated/bin/python $(PYTEST) $(PARALLEL) -m slow $(BOTH_STACKS)
	cd federated && ../.venv-federated/bin/python $(PYTEST) -m slow $(ON_MAIN) tests
	cd federated && ../.venv-flower/bin/python $(PYTEST) -m slow tests/flower

# Runs all tests marked `attack`, including slow ones, in each environment. Writes the
# results to docs/what-was-attacked.md; fails if an attack succeeds.
AUDIT := -m attack
FOUND := $(CURDIR)/audit-output
audit: .venv/.installed .venv-federated/.installed .venv-flower/.installed
	rm -rf $(FOUND)
	.venv/bin/python $(PYTEST) $(PARALLEL) $(AUDIT) --junitxml=$(FOUND)/main.xml tests \
		|| touch $(FOUND)/broken
	cd federated && ../.venv-federated/bin/python $(PYTEST) $(AUDIT) \
		--junitxml=$(FOUND)/federated.xml tests || [ $$? -eq 5 ] || touch $(FOUND)/broken
	cd federated && ../.venv-flower/bin/python $(PYTEST) $(AUDIT) \
		--junitxml=$(FOUND)/flower.xml tests/flower || [ $$? -eq 5 ] || touch $(FOUND)/broken
	.venv/bin/python tests/reporting/page.py docs/what-was-attacked.md $(FOUND)/*.xml
	[ ! -e $(FOUND)/broken ]

# Tests the main stack on another Python, with the newest available packages:
# make test-python PYTHON=python3.13 TESTS="tests/planning tests/test_front_door.py"
TESTS ?= tests
test-python:
	$(PYTHON) -m venv --clear .venv-python
	.venv-python/bin/python -m pip install --quiet ".[keras,test]"
	cd tests && ../.venv-python/bin/python $(PYTEST) -c ../pyproject.toml \
		--rootdir=.. $(PARALLEL) -m "not slow" $(addprefix ../,$(TESTS))

# Analyses a step for an accelerator, on a machine without one.
accelerators: .venv/.installed
	cd tests && ../.venv/bin/python $(PYTEST) -c ../pyproject.toml --rootdir=.. \
		$(PARALLEL) ../tests/keras/test_placement.py

# Tests the Keras part with the nightly Keras and the newest TensorFlow of the index,
# including release candidates, beyond the upper bounds of pyproject.toml; the summary lists
# failures. Names that Keras or TensorFlow have removed fail in tests/keras/compat first.
NEXT := "tensorflow>=2.21.0rc0" tensorflow-probability click dp-accounting hypothesis \
	matplotlib opt-einsum platformdirs pytest pytest-xdist rich scikit-learn scipy \
	sqlalchemy tensorboard threadpoolctl tqdm
test-next:
	$(PYTHON) -m venv --clear .venv-next
	.venv-next/bin/python -m pip install --quiet $(NEXT)
	.venv-next/bin/python -m pip install --quiet --no-deps "tf-keras>=2.21.0rc0" .
	.venv-next/bin/python -m pip uninstall --quiet --yes keras
	.venv-next/bin/python -m pip install --quiet --no-deps --pre keras-nightly
	.venv-next/bin/python -m pip list | grep -iE "^(keras|tensorflow|tf.keras)"
	cd tests && ../.venv-next/bin/python $(PYTEST) -c ../pyproject.toml --rootdir=.. \
		$(PARALLEL) -m "not slow" --ignore-glob="*hub*" ../tests/keras

# Tests the wheel as a user installs it, outside of the sources, with the packages of .venv.
# The sources are not found, because Python ignores .pth files in folders of PYTHONPATH.
INSTALLED = $(shell .venv/bin/python -c "import numpy; print(numpy.__path__[0])")/..
test-wheel: .venv/.installed
	$(PYTHON) -m venv --clear .venv-wheel
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation \
		-w .venv-wheel/dist .
	.venv-wheel/bin/python $(INSTALL) .venv-wheel/dist/*.whl
	cd .venv-wheel && PYTHONPATH=$(INSTALLED) bin/python ../tests/smoke_installed.py

# Builds wheel and sdist for publication, and checks them as an index would.
dist: .venv/.docs
	rm -rf dist
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	.venv/bin/python -c "import setuptools.build_meta as b; b.build_sdist('dist')"
	.venv/bin/python -m twine check --strict dist/*

lint: .venv/.installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	PYTHONPATH=federated .venv/bin/lint-imports
	.venv/bin/python docs/count_house.py --check

format: .venv/.installed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .venv-federated .venv-flower .venv-python .venv-next .venv-wheel \
		demo-output audit-output dist docs/_build

# A virtual environment is rebuilt when its requirement file changes; the stamps are written
# last, so that an incomplete one is never used. Modules are compiled on import, because
# most are never imported, and compiling all of them takes longer than installing them.
INSTALL := -m pip install --quiet --no-compile --no-deps
.venv/.requirements: requirements/main.txt
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python $(INSTALL) -r requirements/main.txt
	touch $@

.venv-federated/.requirements: federated/requirements.txt
	$(PYTHON) -m venv --clear .venv-federated
	.venv-federated/bin/python $(INSTALL) -r federated/requirements.txt
	touch $@

.venv/.installed: .venv/.requirements pyproject.toml
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

.venv/.docs: .venv/.installed requirements/docs.txt
	.venv/bin/python $(INSTALL) -r requirements/docs.txt
	touch $@

.venv-federated/.installed: .venv-federated/.requirements pyproject.toml federated/pyproject.toml
	.venv-federated/bin/python -m pip install --quiet --no-deps --no-build-isolation \
		-e . -e federated
	touch $@

.venv-flower/.requirements: federated/requirements-flower.txt
	$(PYTHON) -m venv --clear .venv-flower
	.venv-flower/bin/python $(INSTALL) -r federated/requirements-flower.txt
	touch $@

.venv-flower/.installed: .venv-flower/.requirements pyproject.toml federated/pyproject.toml
	.venv-flower/bin/python -m pip install --quiet --no-deps --no-build-isolation \
		-e . -e federated
	touch $@
