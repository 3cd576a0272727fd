"""`ray.tune.examples`."""
