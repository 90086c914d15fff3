/* The control protocol of a cluster: configurations of partitions, leases by drifting clocks,
 * catch-up and admission of learners, promotion, and coordinators that share a state in etcd.
 * docs/model.md: what is modelled, and how to run it (run.py). Each transition names the function
 * that implements it.
 *
 * One process: each option of its loop is one atomic transition. Everything that is in flight
 * (views, requests, records, beacons, writes to etcd) arrives at any time, or never.
 */
#define S 3 /* servers */
#define NOBODY S
#ifndef P
#define P 1 /* partitions */
#endif
#ifndef WINDOW
#define WINDOW 3 /* revisions, from the oldest that a server follows to the newest */
#endif
#ifndef W
#define W 2 /* pushes of the worker */
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
/* A lease, and the part of it for which the primary reads, in ticks of the own clock. A slow clock
 * misses one tick of SLOW. LEASE_READ = 0.8 LEASE goes with SLOW 5; in general LEASE_READ by a slow
 * clock takes no longer than LEASE by a fast one. */
#ifndef LEASE
#define LEASE 2
#define LEASE_READ 1
#define SLOW 2
#endif
#ifdef LEASE_WITHOUT_MARGIN
#undef LEASE_READ
#define LEASE_READ LEASE
#endif
#ifdef PROGRESS
#define HEARD_TIMES
#ifndef K
#define K 4 /* ticks after the last fault until every push has ended */
#endif
#endif

#include "rules.h"

typedef Configuration {
  byte epoch;
  byte number;
  byte primary;
  byte copy;
  bit follower;
  byte since;
#ifdef MIGRATION
  bit moves; /* the primary is to seal the partition, and the follower takes its place */
  bit sealed /* the primary before this one has sealed it: it answers nothing any more */
#endif
};

/* A partition at a server. */
typedef Part {
  byte content;  /* NOTHING, LEARNING, COMPLETE */
  byte done;     /* pushes 1..done are applied, or taken as a replica */
  byte wait;     /* as a replica: until the lease that it granted ends; then until it serves */
  /* As the primary. */
  byte pending;  /* the push that waits for its follower; 0: none */
  bit answered;  /* the follower's answer to it is on the way */
  bit required;  /* the copy has everything, and is waited for */
  bit leased;    /* the copy is a follower, or may be one */
  byte left;     /* of the lease that the copy granted */
#if LEASE_READ > 1
  byte sent;     /* what is left since the beacon on the way was sent; 0: there is none */
#endif
#ifdef MIGRATION
  bit sealed;
#endif
#ifdef HEARD_TIMES
  byte heard     /* until the other side is silent */
#endif
};

#define NOTHING 0
#define LEARNING 1
#define COMPLETE 2

/* A coordinator. */
typedef Coordinator {
  byte office;     /* STANDBY, ELECTED, LOADED, LEADS */
  bit holds;       /* the leader's key in etcd is its own */
  byte term;       /* the one that it has begun or is about to */
  byte write;      /* the change whose transaction is on the way; NO_WRITE: none */
  bit write_holds; /* it names the leader's key that is in etcd, and the newest revision */
  bit own;         /* it names the key that this coordinator believes to have */
  byte server;     /* whom the change is about */
  byte partition
};
#define STANDBY 0
#define ELECTED 1
#define LOADED 2
#define LEADS 3
#define NO_WRITE 0
#define WRITE_LEARNER 1
#define WRITE_ADMIT 2
#define WRITE_DROP 3
#define WRITE_PROMOTE 4
#define WRITE_REPLACE 5
#define WRITE_TERM 6
#define WRITE_MOVE 7
#define WRITE_MIGRATE 8
#define WRITE_IN_VAIN 9
#define WRITE_OTHER 10

Configuration at[P * (WINDOW + 1)]; /* by partition and revision */
byte newest;  /* revision */
byte view[S]; /* the revision that a server follows; 0: it is down */
bit lost[P];  /* the newest configuration declares the content lost */
Part part[P * S];
bit slow[S];
byte phase;
#ifndef ONE_STORE
Coordinator coordinator[2];
bit key; /* etcd: there is a leader's key */
byte saved_term;
byte last_commit_term; /* of a change of a configuration */
#endif
byte acknowledged[P];  /* pushes 1.. that the worker has an answer to */
byte faults = FAULTS;
#ifdef MOST_CHANGES
byte changes; /* revisions so far */
#endif
hidden byte i, j, t, who, last; /* scratch */
hidden int rank[S];
/* Claims: spin names the one that is false. */
hidden byte one_acknowledges, one_reads, reads_newest, nothing_lost, only_admitted, terms_grow, one_write, ends_in_time;
#ifdef PROGRESS
byte ticks; /* since the last fault */
bit ticked;
#endif

#define AT(p, n) at[(p) * (WINDOW + 1) + (n)]
#define NOW(p) AT(p, newest)
#define HERE(p, s) part[(p) * S + (s)]
#define UP(s) (view[s] > 0)
#define SEEN(p, s) AT(p, view[s]) /* the configuration that it follows */
#define SPECTATES(p, n, s) (AT(p, n).primary != s && AT(p, n).copy != s)
#define COPY_OF(p, s) HERE(p, SEEN(p, s).copy)
#define CURRENT(p, s) (SEEN(p, s).number == NOW(p).number)
#define LEADING(p, s) (UP(s) && !lost[p] && IS_PRIMARY(SEEN(p, s), s))
#define HAS_COPY(p, s) (LEADING(p, s) && SEEN(p, s).copy != NOBODY)
#if defined(MIGRATION) && !defined(SEALED_PRIMARY_ANSWERS)
#define UNSEALED(p, s) (!HERE(p, s).sealed)
#else
#define UNSEALED(p, s) true
#endif
/* server/executor/copy_requests.cc: CopyRequests::MayAnswer */
#define SERVES(p, s) (LEADING(p, s) && HERE(p, s).content == COMPLETE && MAY_SERVE(HERE(p, s).wait) && UNSEALED(p, s))
#define CAN_READ(p, s) \
  (SERVES(p, s) && MAY_READ(HERE(p, s).wait, HERE(p, s).leased, HERE(p, s).left))
#define COPY_TAKES(p, s) \
  (HAS_COPY(p, s) && UP(SEEN(p, s).copy) && \
   MAY_TAKE(SEEN(p, SEEN(p, s).copy), SEEN(p, s).copy, SEEN(p, s), s))
#ifdef ACKNOWLEDGES_BEFORE_FOLLOWER
#define REQUIRES(p, s) false
#else
#define REQUIRES(p, s) (SEEN(p, s).copy != NOBODY && HERE(p, s).required)
#endif
#define CAN_ACKNOWLEDGE(p, s) \
  (SERVES(p, s) && (!REQUIRES(p, s) || (COPY_TAKES(p, s) && COPY_OF(p, s).content != NOTHING)))

#define CLAIM(name, x) name = (x); assert(name); name = 0

/* Invariants, after each transition. */
#define TWO(p, f) ((f(p, 0) && f(p, 1)) || (f(p, 0) && f(p, 2)) || (f(p, 1) && f(p, 2)))
#define ANSWERS_LESS(p, s) \
  ((CAN_READ(p, s) || CAN_ACKNOWLEDGE(p, s)) && HERE(p, s).done < acknowledged[p])
#define LACKS(p, s) \
  (UP(s) && (HERE(p, s).content != COMPLETE || HERE(p, s).done < acknowledged[p]))

inline Check(p) {
  if
  :: lost[p] -> skip
  :: else ->
    CLAIM(one_acknowledges, !TWO(p, CAN_ACKNOWLEDGE));
    CLAIM(one_reads, !TWO(p, CAN_READ));
    CLAIM(reads_newest, !ANSWERS_LESS(p, 0) && !ANSWERS_LESS(p, 1) && !ANSWERS_LESS(p, 2));
    CLAIM(nothing_lost, !LACKS(p, NOW(p).primary) &&
                        !(NOW(p).copy != NOBODY && NOW(p).follower && LACKS(p, NOW(p).copy)))
  fi
}

inline ForgetConfiguration(p, n) {
  AT(p, n).epoch = 0; AT(p, n).number = 0; AT(p, n).primary = 0; AT(p, n).copy = 0;
  AT(p, n).follower = 0; AT(p, n).since = 0
#ifdef MIGRATION
  ; AT(p, n).moves = 0; AT(p, n).sealed = 0
#endif
}

#include "servers.pml"
#include "coordinators.pml"
#include "reduction.pml"

/* ---- the model -------------------------------------------------------------------------------- */

#if P == 1
#define BY_PARTITION(A, s) A(0, s)
#define DECIDE_FOR(A, c, s) A(c, 0, s)
#else
#define BY_PARTITION(A, s) A(0, s) A(1, s)
#define DECIDE_FOR(A, c, s) A(c, 0, s) A(c, 1, s)
#endif
#define SERVERS(A) A(0) A(1) A(2)
#define ALL(A) BY_PARTITION(A, 0) BY_PARTITION(A, 1) BY_PARTITION(A, 2)
#define ALL_DECIDE(A, c) DECIDE_FOR(A, c, 0) DECIDE_FOR(A, c, 1) DECIDE_FOR(A, c, 2)
#define COORDINATORS(A) A(0) A(1)
/* Environment. */
#define CRASH(s) :: d_step { faults > 0 && UP(s) -> printf("server %d crashes\n", s); Crash(s) }

#ifdef NO_LEASES
#define BEACONS
#define TIME
#else
#define BEACONS ALL(BEACON) ALL(BEACON_ANSWER)
#define TIME :: d_step { true -> Tick() }
#endif
#ifdef ONE_STORE
#define CHANGES \
  ALL_DECIDE(RECONFIGURE, 0) ALL_DECIDE(PLACE, 0) ALL_DECIDE(DROP_LEARNER, 0) ALL_DECIDE(MOVE, 0) \
  JOIN(0, 0) JOIN(0, 1) JOIN(0, 2)
#define COORDINATOR_FAULTS
#else
#define CHANGES \
  ALL_DECIDE(RECONFIGURE, 0) ALL_DECIDE(PLACE, 0) ALL_DECIDE(DROP_LEARNER, 0) ALL_DECIDE(MOVE, 0) \
  ALL_DECIDE(RECONFIGURE, 1) ALL_DECIDE(PLACE, 1) ALL_DECIDE(DROP_LEARNER, 1) ALL_DECIDE(MOVE, 1) \
  JOIN(0, 0) JOIN(0, 1) JOIN(0, 2) JOIN(1, 0) JOIN(1, 1) JOIN(1, 2) \
  COORDINATORS(COMMIT) COORDINATORS(DECIDE_IN_VAIN) COORDINATORS(REFUSE) COORDINATORS(ELECT) COORDINATORS(TAKE_OFFICE) \
  COORDINATORS(RETIRE) COORDINATORS(CHANGE_OTHERS) KEY_ENDS
#define COORDINATOR_FAULTS COORDINATORS(COORDINATOR_CRASHES) KEY_IS_LOST
#endif
#define STEPS \
  SERVERS(VIEWS) ALL(PUSH) ALL(RECORD) ALL(ANSWER) ALL(COMPLETED) ALL(TAKE_COMPLETE) \
  ALL(SEAL) BEACONS CHANGES
#ifdef PROGRESS
/* Environment. */
#define LINK_FAULTS ALL(LINK_IS_LOST)
#define LINK_IS_LOST(p, s) :: d_step { faults > 0 && HERE(p, s).answered -> faults--; HERE(p, s).answered = 0 }
/* A server that is up has everything. Others do not come back. */
#define HELD(p) (UP(NOW(p).primary) || (NOW(p).copy != NOBODY && NOW(p).follower && UP(NOW(p).copy)))
#if P == 1
#define WAITED_FOR (!lost[0] && HELD(0) && acknowledged[0] < W)
#else
#define WAITED_FOR \
  ((!lost[0] && HELD(0) && acknowledged[0] < W) || (!lost[1] && HELD(1) && acknowledged[1] < W))
#endif
#else
#define LINK_FAULTS
#endif
#define CRASHES CRASH(0) CRASH(1) CRASH(2) COORDINATOR_FAULTS LINK_FAULTS

/* Any partition begins with a follower that has everything. */
inline Start() {
  newest = 1;
  for (j : 0 .. P - 1) {
    AT(j, 1).epoch = 1; AT(j, 1).number = 1; AT(j, 1).primary = j; AT(j, 1).copy = j + 1;
    AT(j, 1).follower = 1; AT(j, 1).since = 1;
    HERE(j, j).content = COMPLETE; HERE(j, j + 1).content = COMPLETE;
    HERE(j, j).leased = 1; HERE(j, j).required = 1
#ifdef HEARD_TIMES
    ; HERE(j, j).heard = LEASE; HERE(j, j + 1).heard = LEASE
#endif
  }
  for (i : 0 .. S - 1) {
    view[i] = 1
  }
#ifndef ONE_STORE
  key = 1; saved_term = 1; last_commit_term = 1;
  CO(0).office = LEADS; CO(0).holds = 1; CO(0).term = 1;
#endif
  i = 0; j = 0
}

active proctype Cluster() {
  d_step { Start() }
  /* A clock of one server is slow, or none; -DANY_CLOCKS: of any servers. */
#ifndef NO_LEASES
  if
  :: slow[0] = 1
  :: slow[1] = 1
  :: slow[2] = 1
  :: skip
#ifdef ANY_CLOCKS
  :: d_step { slow[0] = 1; slow[1] = 1 }
  :: d_step { slow[0] = 1; slow[2] = 1 }
  :: d_step { slow[1] = 1; slow[2] = 1 }
#endif
  fi;
#endif
#ifdef PROGRESS
  select (faults : 0 .. FAULTS);
#endif
#ifndef PROGRESS
  do
  :: atomic {
       if
       STEPS
       CRASHES
       TIME
       fi;
       d_step { Finish() }
     }
  od
#else
  do
  :: atomic {
       if
       CRASHES
       fi;
       d_step { Finish() }
     }
  :: atomic {
       if
       STEPS
       :: else ->
         d_step {
           Tick();
           ticked = 1;
           if
           :: faults == 0 && WAITED_FOR ->
             ticks++;
             CLAIM(ends_in_time, ticks <= K)
           :: else
           fi
         }
       fi;
       d_step { Finish() }
     };
     if
     :: ticked ->
progress: ticked = 0
     :: else
     fi
  od
#endif
}
