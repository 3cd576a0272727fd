"""Trial schedulers, one file each: who goes on, who stops, who waits, who starts again from whom (`core.verdicts`)."""
