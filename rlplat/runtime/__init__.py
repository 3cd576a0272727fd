"""The distributed runtime: tasks, actors and object refs on ZeroMQ.

The floor plan, from top to bottom. A wing imports those below it only, and beside it nobody (contracts in
pyproject.toml, types included):

    start      the processes of a private cluster: driver, node, zygote
    look       questions to a running cluster, traces, logs
    worker     a client that runs what others submit
    node       the scheduler's hands, the workers' keeper
    inproc     the verbs in one process and thread
    ray        the verbs on a Ray cluster
    client     the verbs' work: calls, tasks, actors, objects, streams; what a process hears from the others
    .          the face, in this folder: what users see (`api`, `remote`, `options`, `placement`, ...)
    envs       runtime environments           store   shared memory
    link       the socket and its threads     machine /proc, the session's folder, hardware, logs
    core       the judgement, pure: owner, scheduler, node. Events in, actions out; no sockets, clock, threads, pickle
    wire       what travels, and as which bytes
    refs       object refs, and which runtime this process is connected to (in this folder)
    process    signals, own frames, spans, stacks of one Python process

`link.transport` is the only door to zmq. `wire.messages` has every message; `core.scheduler.events` what the scheduler
hears and wants done.
"""
