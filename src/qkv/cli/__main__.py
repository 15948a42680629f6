"""`python -m qkv.cli`, for where the script is not on the path."""

import sys

from qkv.cli import main

sys.exit(main())
