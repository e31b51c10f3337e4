# make demo and make test set up what they need, once, on a machine with Python 3.11.
PYTHON ?= python3.11
# Most of a test's time is tracing, which uses one processor.
JOBS ?= 2
PYTEST := -m pytest
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: demo test test-main test-federated test-slow lint format clean

demo: .venv/.installed
	.venv/bin/python examples/digits.py

test: test-main test-federated

test-main: .venv/.installed
	.venv/bin/python $(PYTEST) -n $(JOBS) -m "not slow" tests
	cd federated && PYTHONPATH=. ../.venv/bin/python $(PYTEST) -n $(JOBS) -m "not slow" tests

test-federated: .venv-federated/.installed
	.venv-federated/bin/python $(PYTEST) -n $(JOBS) -m "not slow" --ignore=tests/keras tests
	cd federated && ../.venv-federated/bin/python $(PYTEST) -m "not slow" tests

test-slow: .venv/.installed
	.venv/bin/python $(PYTEST) -m slow tests

lint: .venv/.installed
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

format: .venv/.installed
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

clean:
	rm -rf .venv .venv-federated demo-output

# A virtual environment is made anew when its requirement file changes; the stamps are
# written last, so that a half-made one is never used.
.venv/.requirements: requirements/main.txt
	$(PYTHON) -m venv --clear .venv
	.venv/bin/python -m pip install --quiet --no-deps -r requirements/main.txt
	touch $@

.venv-federated/.requirements: federated/requirements.txt
	$(PYTHON) -m venv --clear .venv-federated
	.venv-federated/bin/python -m pip install --quiet --no-deps -r federated/requirements.txt
	touch $@

.venv/.installed: .venv/.requirements pyproject.toml
	.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

.venv-federated/.installed: .venv-federated/.requirements pyproject.toml federated/pyproject.toml
	.venv-federated/bin/python -m pip install --quiet --no-deps --no-build-isolation \
		-e . -e federated
	touch $@
