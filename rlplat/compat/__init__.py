"""Spellings of other libraries, over rlplat's own verbs; imported only by programs that ask for them."""
