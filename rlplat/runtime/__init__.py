"""The distributed runtime: tasks, actors and object refs on ZeroMQ.

Pure rooms (events in, actions out; no sockets, clock or threads): `messages`, `codec`, `scheduler`, `ownership`.
Shell: `transport` (the only door to zmq), `store`, `client`, `worker`, `node`, `zygote`, `start`, `api`.
Backends: `client` (zmq, the default) and `inproc` (the same verbs in one process, for debuggers).
"""
