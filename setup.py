"""Metadata lives in pyproject.toml; a build leaves nothing in the source tree."""

import atexit
import shutil
import tempfile

from setuptools import setup

scratch = tempfile.mkdtemp(prefix="tf-bandmf-build-")
atexit.register(shutil.rmtree, scratch, ignore_errors=True)
setup(
    options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}},
)
