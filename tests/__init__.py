"""All tests, and the sweeps that are programs of their own (opinfo, fuzz)."""

import os

# Eager operations by way of the host, also in new processes: tests and sweeps call thousands of
# them once, on shapes of which no two are alike, and each would be compiled. Those on the card are
# in tests/device/test_eager_on_card.py; SPYRE_EAGER=card runs everything so.
os.environ.setdefault("SPYRE_EAGER", "host")

# Every program is checked after the stages that have a validator (_inductor/pipeline.py).
os.environ.setdefault("SPYRE_VALIDATE", "1")
