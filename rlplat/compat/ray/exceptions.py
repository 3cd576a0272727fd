"""`ray.exceptions`: rlplat's classes by Ray's names."""

from rlplat.errors import (
    ActorDied,
    GetTimeout,
    NodeLost,
    ObjectLost,
    ObjectRebuildFailed,
    ObjectStoreFull,
    OutOfMemory,
    OwnerDied,
    PendingCallsLimitExceeded,
    RuntimeEnvFailed,
    RuntimeFault,
    TaskCancelled,
    TaskError,
    WorkerCrashed,
)

RayError = RuntimeFault
RayTaskError = TaskError
RayActorError = ActorDiedError = ActorUnavailableError = ActorDied
RayWorkerError = WorkerCrashedError = WorkerCrashed
GetTimeoutError = RayTimeoutError = GetTimeout
TaskCancelledError = TaskCancelled
ObjectLostError = UnreconstructableError = ObjectFetchTimedOutError = ObjectLost
ObjectReconstructionFailedError = ObjectRebuildFailed
OwnerDiedError = OwnerDied
ObjectStoreFullError = OutOfDiskError = ObjectStoreFull
OutOfMemoryError = OutOfMemory
RuntimeEnvSetupError = RuntimeEnvFailed
NodeDiedError = RaySystemError = NodeLost
