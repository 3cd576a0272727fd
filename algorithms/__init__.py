"""The algorithms, one file each, read top to bottom.

Their one name is `rlplat.algorithms` (`from rlplat.algorithms.ppo import PPO`): in a checkout, where
`rlplat/algorithms` links to this folder, and from a wheel alike. A top-level `algorithms` may be a user's own folder.
"""

if __name__ != "rlplat.algorithms":
    raise ImportError(f"{__name__!r} is imported as rlplat.algorithms: from rlplat.algorithms.ppo import PPO")
