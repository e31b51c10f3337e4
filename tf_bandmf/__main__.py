"""Runs the command line for `python -m tf_bandmf`."""

import sys

from tf_bandmf.cli import main

sys.exit(main())
