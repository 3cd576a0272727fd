"""Runtime environments (`runtime_env`): checked, built, entered."""
