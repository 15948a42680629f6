"""`python -m qkv` is the command `qkv`, for where that is not on the path."""

import sys

from qkv.cli import main

sys.exit(main())
