"""The driver of a job: the master and its parts decide, the loop, repairs and `background` act. Theory of operation:

One driver process owns a job at a time. The job log alone decides which: a sequence of records in an object store,
each created only if no object of its number exists. Drivers share nothing else, and the log is never wrong. Everything
else that a driver knows is a guess about processes that may be slow, cut off or dead.

The state of a job is the fold of its log. A *generation* begins with a record, `GenerationStarted` or `Rewound`; a
driver that finds the start of a newer one at the number of its own append is fenced and exits. Within its generation a
driver closes *epochs*: sources send a barrier, every subtask freezes its state where the barrier passes and stores it,
a manifest names all the parts, and the record of that manifest commits the epoch. Before the record, nothing of the
epoch counts; after it, all of it does, although targets may show it later: workers deliver committed output first in,
first out, and every manifest names the output that is not known to be delivered.

That determines how the driver handles a failure. It does not find out how far a lost worker came. It appends the start
of a new generation, whose base is the last completed epoch. Every survivor rolls back to it in place, and other workers
restore the lost subtasks. Old workers act under an old generation: their messages are ignored, their streams closed,
their writes fenced by the tags in the targets. A rewind is the same with an older base, a new *timeline*, and one more
step: targets take back the output that the older timeline delivered after the base.

The master takes one event at a time and returns the next state and the effects, in order; it does not act. `loop.py`
performs the effects and reports each result as another event. Messages may be lost, repeated or late, and any event may
come in any phase. So no handler relies on the event before it, and `Tick` repeats every effect that has no answer.
`master.ON` is the table of all pairs of phase and event that change something:

    Opening --> Loading --> Repairing --> Gathering --> Running --> Exhausted --> Halted --> Delivering --> Over
       ^         the base    targets       workers       sources     all input     the last   output of
       |         is read     are repaired  register      are read    is read       barrier    the last epoch
       |                        |                        |             |              |            |
       |                        +--> Repaired --> Over   +-------------+-------+------+------------+
       |                             a run that only                           v
       |                             rewinds ends                         Interrupted: a worker is lost
       +-------------------------------------------------------------------------+

A new job has no base to load, and most generations have no target to repair, so they skip these phases. A `stop` skips
Exhausted. Interrupted waits for the record in flight, since its epoch may be complete. Data that outlives the phases is
beside them in `state.Master`: the workers, the requested ending of the run and the requested rewind. A recovery does
not undo a request.

    events.py, state.py     events and effects; phases, workers, rules
    master.py               the table
    gathering.py            from a start to the deployment: base, repairs, workers, subtasks
    epochs.py               from the deployment to the end: barriers, records, deliveries, expiry
    deployment.py           values derived from the state: what a worker must run, the next manifest
    partitions.py           which partitions are read, by which subtask, how far ahead in event time
    failover.py             losses, the restart limit, launches, broken channels, hosts to avoid
    standbys.py             copies of state that follow the job
    killing.py              functions and reads that end their process
    requests.py             stop, finish, savepoint, rewind
    invariants.py           what must hold between two events
    loop.py, repair.py      act

Scripts of events with the effects that follow are in tests/transcripts/master.

Invariants
    - Nothing is deployed before the log holds the start of this generation, `GenerationStarted` or `Rewound`.
    - An append in doubt is settled before the next generation is appended (P4).
    - The master never sends to a lost worker again. If that worker is alive it is a zombie, and every message
      from it carries an old generation or arrives on a closed stream (P2).
    - The run ends only when the last epoch is completed and delivered (P13).

No Spark and no command line belong here.
"""
