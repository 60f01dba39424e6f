"""All tests, and the sweeps that are programs of their own (opinfo, fuzz)."""

import os

# Eager operations by way of the host, also in new processes: tests and sweeps call thousands of
# them once, on shapes of which no two are alike, and each would be compiled. Those on the card are
# in tests/device/test_eager_on_card.py; SPYRE_EAGER=card runs everything so.
os.environ.setdefault("SPYRE_EAGER", "host")
