"""Makes `forms` and `written` importable."""

import pathlib
import sys

import pytest

pytest.importorskip("keras", minversion="3.12")
sys.path.insert(0, str(pathlib.Path(__file__).parent))
