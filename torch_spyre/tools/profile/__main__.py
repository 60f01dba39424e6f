"""`python -m torch_spyre.tools.profile MODULE:FUNCTION`."""

from torch_spyre.tools.profile.measure import main

raise SystemExit(main())
