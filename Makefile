# make demo and make test set up what they need, once, on a machine with Python 3.11.
PYTHON ?= python3.11
# Most of a test's time is tracing, which uses one processor. The tests of a file share
# models and plans, so that they run in one process. By the number of its tests, a file
# with a single long one would be last, with one process waiting for the other.
JOBS ?= 2
# A test that takes long is named: CONTRIBUTING.md says which are slow.
PYTEST := -m pytest --durations=15 --durations-min=5
PARALLEL := -n $(JOBS) --dist loadfile --no-loadscope-reorder
# What the two stacks may compute differently, once: the contracts go over all that is
# registered; NoiseGenerator, the samplers' tf.data and the Gram recursion are TensorFlow;
# optimizers are TensorFlow Probability's; the accountants here are dp-accounting's and
# SciPy's. What is left out is our own NumPy (sensitivities, closed forms, Monte Carlo,
# laws of samplers), or the parts above put together.
BOTH_STACKS := $(addprefix tests/,contracts noise optimize analysis/test_gram_recursion.py \
	$(addprefix accounting/,test_cyclic_poisson.py test_gaussian.py test_outputs.py) \
	$(addprefix sampling/,test_batches.py test_examples_on_disk.py test_padding.py) \
	planning/test_plan.py strategies/test_banded.py test_front_door.py)
# Of the federated tests, those of plain Python that test-main runs.
ON_MAIN := $(addprefix --ignore=tests/test_,accounting.py budget_ledger.py ledger.py \
	ledger_lock.py report.py secret_words.py)
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo docs linkcheck notebooks figures dist test test-main \
	test-federated test-flower test-slow test-python test-next test-wheel accelerators audit lint \
	format clean

demo: .venv/.installed
	.venv/bin/python examples/digits.py

# The site, in docs/_build/html; a warning is an error, and so is a link that leads nowhere.
docs: .venv/.docs
	.venv/bin/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	.venv/bin/python docs/check_site.py docs/_build/html

# Whether the outside answers; needs a network.
linkcheck: .venv/.docs
	.venv/bin/python -m sphinx -q -b linkcheck docs docs/_build/linkcheck

# What the site shows, made anew from scripts: notebooks with their outputs; pictures and the
# page of benchmarks.
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

# Flower, on a grid in one process.
test-flower: .venv-flower/.installed
	cd federated && ../.venv-flower/bin/python $(PYTEST) -m "not slow" tests/flower

test-slow: .venv/.installed .venv-federated/.installed .venv-flower/.installed
	.venv/bin/python $(PYTEST) $(PARALLEL) -m slow tests
	cd federated && PYTHONPATH=. ../.venv/bin/python $(PYTEST) -m slow tests
	.venv-federated/bin/python $(PYTEST) $(PARALLEL) -m slow $(BOTH_STACKS)
	cd federated && ../.venv-federated/bin/python $(PYTEST) -m slow $(ON_MAIN) tests
	cd federated && ../.venv-flower/bin/python $(PYTEST) -m slow tests/flower

# Attacks on the library: tests marked `attack`, slow ones too, in each environment that
# runs them. Writes what held into docs/what-was-attacked.md; fails if something did not.
AUDIT := -m attack
FOUND := $(CURDIR)/audit-output
audit: .venv/.installed .venv-federated/.installed .venv-flower/.installed
	rm -rf $(FOUND)
	.venv/bin/python $(PYTEST) $(PARALLEL) $(AUDIT) --attacks=$(FOUND)/main.json tests \
		|| touch $(FOUND)/broken
	cd federated && ../.venv-federated/bin/python $(PYTEST) $(AUDIT) \
		--attacks=$(FOUND)/federated.json tests || [ $$? -eq 5 ] || touch $(FOUND)/broken
	cd federated && ../.venv-flower/bin/python $(PYTEST) $(AUDIT) \
		--attacks=$(FOUND)/flower.json tests/flower || [ $$? -eq 5 ] || touch $(FOUND)/broken
	.venv/bin/python tests/reporting/page.py docs/what-was-attacked.md $(FOUND)/*.json
	[ ! -e $(FOUND)/broken ]

# The main stack on another Python, with the newest packages there are for it:
# make test-python PYTHON=python3.13 TESTS="tests/planning tests/test_front_door.py"
TESTS ?= tests
test-python:
	$(PYTHON) -m venv --clear .venv-python
	.venv-python/bin/python -m pip install --quiet ".[keras,test]"
	cd tests && ../.venv-python/bin/python $(PYTEST) -c ../pyproject.toml \
		--rootdir=.. $(PARALLEL) -m "not slow" $(addprefix ../,$(TESTS))

# What a step is on an accelerator, counted on a machine that has none.
accelerators: .venv/.installed
	cd tests && ../.venv/bin/python $(PYTEST) -c ../pyproject.toml --rootdir=.. \
		$(PARALLEL) ../tests/keras/test_placement.py

# The Keras part with the nightly Keras and the newest TensorFlow that the index has, release
# candidates too, whatever upper bounds pyproject.toml sets; the summary lists what fails.
# Names that Keras or TensorFlow no longer have fail in tests/keras/compat first.
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

# What a user installs: the wheel, outside of the sources. It needs what .venv has; the
# sources are not found there, for Python reads no .pth files of what PYTHONPATH names.
INSTALLED = $(shell .venv/bin/python -c "import numpy; print(numpy.__path__[0])")/..
test-wheel: .venv/.installed
	$(PYTHON) -m venv --clear .venv-wheel
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation \
		-w .venv-wheel/dist .
	.venv-wheel/bin/python $(INSTALL) .venv-wheel/dist/*.whl
	cd .venv-wheel && PYTHONPATH=$(INSTALLED) bin/python ../tests/smoke_installed.py

# Wheel and sdist as they would be published, and what an index would say of them.
dist: .venv/.docs
	rm -rf dist
	.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .
	.venv/bin/python -c "import setuptools.build_meta as b; b.build_sdist('dist')"
	.venv/bin/python -m twine check --strict dist/*

lint: .venv/.installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/python docs/count_house.py --check

format: .venv/.installed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .venv-federated .venv-flower .venv-python .venv-next .venv-wheel \
		demo-output audit-output dist docs/_build

# A virtual environment is made anew when its requirement file changes; the stamps are
# written last, so that a half-made one is never used. Modules are compiled when they are
# imported: most never are, and all of them take longer to compile than to install.
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
