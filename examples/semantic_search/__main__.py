"""`python -m examples.semantic_search`."""

import sys

from examples.semantic_search.command import main

sys.exit(main())
