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
#ifndef MAXC
#define MAXC 5 /* configurations of a partition */
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
  byte view;     /* number of the configuration that it follows */
  byte content;  /* NOTHING, LEARNING, COMPLETE */
  byte done;     /* pushes 1..done are applied, or taken as a replica */
  byte wait;     /* as a replica: until the lease that it granted ends; then until it serves */
  /* As the primary. */
  byte pending;  /* the push that waits for its follower; 0: none */
  bit answered;  /* the follower's answer to it is on the way */
  bit required;  /* the copy has everything, and is waited for */
  bit leased;    /* the copy is a follower, or may be one */
  byte left;     /* of the lease that the copy granted */
  byte sent;     /* what is left since the beacon on the way was sent; 0: there is none */
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
  byte office;       /* STANDBY, ELECTED, LOADED, LEADS */
  byte key;          /* create revision of its leader's key */
  byte term;         /* the one that it has begun or is about to */
  byte base[P];      /* numbers of the configurations that it has */
  byte write;        /* the change whose transaction is on the way; 0: none */
  byte write_key;
  byte write_base[P];
  byte server;       /* whom the change is about */
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

Configuration at[P * (MAXC + 1)]; /* by partition and number: those that were saved */
byte newest[P];
bit lost[P]; /* the newest configuration declares the content lost */
Part part[P * S];
bit up[S];
bit slow[S];
byte phase;
#ifndef ONE_STORE
Coordinator coordinator[2];
byte leader_key; /* etcd: create revision; 0: there is none */
byte last_key;
byte saved_term;
byte last_commit_term; /* of a change of a configuration */
#endif
byte acknowledged[P];  /* pushes 1.. that the worker has an answer to */
byte faults = FAULTS;
byte i, j, t, who, base; /* scratch, 0 between transitions */
/* Claims: spin names the one that is false. */
bit one_acknowledges, one_reads, reads_newest, nothing_lost, only_admitted, terms_grow, ends_in_time;
#ifdef PROGRESS
byte ticks; /* since the last fault */
bit ticked;
#endif

#define AT(p, n) at[(p) * (MAXC + 1) + (n)]
#define NOW(p) AT(p, newest[p])
#define HERE(p, s) part[(p) * S + (s)]
#define SEEN(p, s) AT(p, HERE(p, s).view) /* the configuration that it follows */
#define COPY_OF(p, s) HERE(p, SEEN(p, s).copy)
#define CURRENT(p, s) (HERE(p, s).view == newest[p])
#define LEADING(p, s) (up[s] && !lost[p] && HERE(p, s).view > 0 && IS_PRIMARY(SEEN(p, s), s))
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
  (HAS_COPY(p, s) && up[SEEN(p, s).copy] && COPY_OF(p, s).view > 0 && \
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
  (up[s] && (HERE(p, s).content != COMPLETE || HERE(p, s).done < acknowledged[p]))

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

#include "servers.pml"
#include "coordinators.pml"

/* ---- the model -------------------------------------------------------------------------------- */

/* Configurations that nobody refers to any more make no difference. */
inline Clean(p) {
  t = newest[p];
  for (i : 0 .. S - 1) {
    if :: up[i] && HERE(p, i).view < t -> t = HERE(p, i).view :: else fi
  }
#ifndef ONE_STORE
  for (i : 0 .. 1) {
    if :: CO(i).office >= LOADED && CO(i).base[p] < t -> t = CO(i).base[p] :: else fi;
    if :: CO(i).write != NO_WRITE && CO(i).write_base[p] < t -> t = CO(i).write_base[p] :: else fi
  }
#endif
  for (i : 1 .. t - 1) {
    AT(p, i).epoch = 0; AT(p, i).number = 0; AT(p, i).primary = 0; AT(p, i).copy = 0;
    AT(p, i).follower = 0; AT(p, i).since = 0
#ifdef MIGRATION
    ; AT(p, i).moves = 0; AT(p, i).sealed = 0
#endif
  }
  t = 0; i = 0
}
/* After each transition. */
inline Finish() {
  for (j : 0 .. P - 1) {
    Check(j);
    Clean(j)
  };
  j = 0
}

#if P == 1
#define BY_PARTITION(A, s) A(0, s)
#define DECIDE_FOR(A, c, s) A(c, 0, s)
#else
#define BY_PARTITION(A, s) A(0, s) A(1, s)
#define DECIDE_FOR(A, c, s) A(c, 0, s) A(c, 1, s)
#endif
#define ALL(A) BY_PARTITION(A, 0) BY_PARTITION(A, 1) BY_PARTITION(A, 2)
#define ALL_DECIDE(A, c) DECIDE_FOR(A, c, 0) DECIDE_FOR(A, c, 1) DECIDE_FOR(A, c, 2)
#define COORDINATORS(A) A(0) A(1)
/* Environment. */
#define CRASH(s) :: d_step { faults > 0 && up[s] -> printf("server %d crashes\n", s); Crash(s) }

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
  COORDINATORS(COMMIT) COORDINATORS(REFUSE) COORDINATORS(ELECT) COORDINATORS(TAKE_OFFICE) \
  COORDINATORS(RETIRE) KEY_ENDS
#define COORDINATOR_FAULTS COORDINATORS(COORDINATOR_CRASHES) KEY_IS_LOST
#endif
#define STEPS \
  ALL(VIEWS) ALL(PUSH) ALL(BEGIN) ALL(RECORD) ALL(ANSWER) ALL(COMPLETED) ALL(TAKE_COMPLETE) ALL(ADMITTING) \
  ALL(SEAL) BEACONS CHANGES
#define LOSSES ALL(LOSE_ANSWER)
#ifdef PROGRESS
/* Environment. */
#define LINK_FAULTS ALL(LINK_IS_LOST)
#define LINK_IS_LOST(p, s) :: d_step { faults > 0 && HERE(p, s).answered -> faults--; HERE(p, s).answered = 0 }
/* A server that is up has everything. Others do not come back. */
#define HELD (up[NOW(0).primary] || (NOW(0).copy != NOBODY && NOW(0).follower && up[NOW(0).copy]))
#else
#define LINK_FAULTS
#endif
#define CRASHES CRASH(0) CRASH(1) CRASH(2) COORDINATOR_FAULTS LINK_FAULTS

/* Any partition begins with a follower that has everything. */
inline Start() {
  for (j : 0 .. P - 1) {
    AT(j, 1).epoch = 1; AT(j, 1).number = 1; AT(j, 1).primary = j; AT(j, 1).copy = j + 1;
    AT(j, 1).follower = 1; AT(j, 1).since = 1;
    newest[j] = 1;
    for (i : 0 .. S - 1) {
      HERE(j, i).view = 1
    }
    HERE(j, j).content = COMPLETE; HERE(j, j + 1).content = COMPLETE;
    HERE(j, j).leased = 1; HERE(j, j).required = 1
#ifdef HEARD_TIMES
    ; HERE(j, j).heard = LEASE; HERE(j, j + 1).heard = LEASE
#endif
  }
  for (i : 0 .. S - 1) {
    up[i] = 1
  }
#ifndef ONE_STORE
  leader_key = 1; last_key = 1; saved_term = 1; last_commit_term = 1;
  CO(0).office = LEADS; CO(0).key = 1; CO(0).term = 1;
  for (j : 0 .. P - 1) {
    CO(0).base[j] = 1
  }
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
       LOSSES
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
           :: faults == 0 && HELD && acknowledged[0] < W ->
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
