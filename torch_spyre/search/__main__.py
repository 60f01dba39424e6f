"""`python -m torch_spyre.search`."""

import sys

from torch_spyre.search.command import main

sys.exit(main())
