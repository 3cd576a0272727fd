"""`ray.util.sgd.utils` and `ray.util.sgd.torch.constants`."""

BATCH_COUNT, BATCH_SIZE, NUM_SAMPLES = "batch_count", "*batch_size", "num_samples"
SCHEDULER_STEP_EPOCH, SCHEDULER_STEP_BATCH, SCHEDULER_STEP_MANUAL = "epoch", "batch", "manual"
