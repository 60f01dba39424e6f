"""`python -m examples.chat`."""

import sys

from examples.chat.command import main

sys.exit(main())
