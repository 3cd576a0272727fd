"""The distributed runtime: tasks, actors and object refs on ZeroMQ.

Pure rooms (events in, actions out; no sockets, clock or threads): `messages`, `codec`, `scheduler`, `book`,
`lanes`. Shell: `transport` (the only door to zmq), `loop` (threads and waiting), `store` (shared memory),
`objects` (refs and values), `client` (tasks and actors), and the processes: `driver`, `worker`, `node`, `zygote`;
`start` starts them, `session` is what they leave in the machine meanwhile. `api` has the public verbs; they run on
a `backend`: `client` (zmq, the default) or `inproc` (the same verbs in one process, for debuggers).
"""
