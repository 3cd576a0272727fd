"""`rlplat dashboard`: a read-only web page over run directories and the running cluster.

    browser ──GET /api/...──▶ server ──reads──▶ run directories (config.yaml, metrics.jsonl, log.txt, videos/)
                                     ──asks───▶ rlplat.state (the running cluster)

`follow` reads metrics files from a cursor, `bands` puts runs that differ by their seed together, `hints` says why a run
may not learn (all three pure but for the reading of the file); `pages` gathers what a page shows, `server` is HTTP.
Nothing is ever written.
"""
