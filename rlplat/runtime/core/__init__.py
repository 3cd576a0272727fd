"""The judgement of the runtime, the whole folder: events in, actions out; no sockets, clock, threads or pickle."""
