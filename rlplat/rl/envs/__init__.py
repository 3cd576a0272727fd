"""Environments: by name, many side by side, checked and guarded, saved and replayed; the one door to gymnasium."""
