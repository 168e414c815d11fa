"""`python -m testbed`: the testbed command without an installed script."""

import sys

from testbed.cli import main

sys.exit(main())
