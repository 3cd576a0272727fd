"""Other libraries' names over rlplat's own verbs, for programs that are to run as they are: docs/from-ray.md."""
