"""`python -m tf_bandmf.cli`."""

import sys

from tf_bandmf.cli import main

if __name__ == "__main__":
    sys.exit(main())
