"""Many seeds of one run in one program (`rlplat train --seeds 0-31 --together`): see `training`."""
