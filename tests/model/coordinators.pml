/* Changes of configurations, and the coordinators that save them (cluster.pml). */

/* ---- changes of configurations ---------------------------------------------------------------- */

/* For a further revision. */
#ifdef MOST_CHANGES
#define ROOM (newest < WINDOW && changes < MOST_CHANGES)
#else
#define ROOM (newest < WINDOW)
#endif
/* The next revision, with the same configurations. */
inline Revise() {
  newest++;
#ifdef MOST_CHANGES
  changes++;
#endif
  for (j : 0 .. P - 1) {
    AT(j, newest).epoch = AT(j, newest - 1).epoch; AT(j, newest).number = AT(j, newest - 1).number;
    AT(j, newest).primary = AT(j, newest - 1).primary; AT(j, newest).copy = AT(j, newest - 1).copy;
    AT(j, newest).follower = AT(j, newest - 1).follower; AT(j, newest).since = AT(j, newest - 1).since
#ifdef MIGRATION
    ; AT(j, newest).moves = AT(j, newest - 1).moves; AT(j, newest).sealed = AT(j, newest - 1).sealed
#endif
  };
  j = 0
}

/* The configuration of one partition is another one in the newest revision. */
inline Renew(p) {
  NOW(p).number = newest
#ifdef MIGRATION
  ; NOW(p).moves = 0; NOW(p).sealed = 0
#endif
}

inline Lose(p) {
  lost[p] = 1; acknowledged[p] = 0;
  for (i : 1 .. newest) {
    ForgetConfiguration(p, i)
  };
  for (i : 0 .. S - 1) {
    ForgetPart(p, i)
  };
  i = 0
}

/* server/coordinator/configurations.cc: ReplaceServer */
inline Replace(p) {
  if
  :: lost[p] -> skip
  :: !lost[p] && NOW(p).primary == who && NOW(p).follower ->
    Renew(p);
    MAKE_PRIMARY(NOW(p), NOW(p).copy)
  :: !lost[p] && NOW(p).primary == who && !NOW(p).follower -> Lose(p)
#ifdef REPLACED_FOR_ONE_PARTITION
  :: !lost[p] && NOW(p).copy == who && p == 0 ->
#else
  :: !lost[p] && NOW(p).copy == who ->
#endif
    Renew(p);
    DROP(NOW(p), who)
  :: else
  fi
}
/* In all partitions, in one revision. */
inline ReplaceAll() {
  Revise();
  for (j : 0 .. P - 1) {
    Replace(j)
  };
  j = 0;
  view[who] = newest
}

/* The newest revision by `kind`, of or for server `who`. */
inline Apply(p, kind) {
  Revise();
  Renew(p);
  if
  :: kind == WRITE_LEARNER -> ADD_LEARNER(NOW(p), who)
  :: kind == WRITE_ADMIT -> ADMIT(NOW(p), who)
  :: kind == WRITE_DROP -> DROP(NOW(p), who)
  :: kind == WRITE_PROMOTE ->
    CLAIM(only_admitted, NOW(p).follower);
    MAKE_PRIMARY(NOW(p), who)
#ifdef MIGRATION
  :: kind == WRITE_MOVE -> MOVE_ON(NOW(p))
  :: kind == WRITE_MIGRATE ->
    MAKE_PRIMARY(NOW(p), who);
    NOW(p).sealed = 1
#endif
  fi
}

#define CO(c) coordinator[c]
#ifdef ONE_STORE
/* The state changes at once, by any coordinator. */
#define DECIDE_AND(c, p, kind, condition, s, action) \
  :: d_step { !lost[p] && ROOM && condition -> \
       who = s; printf("change %d of server %d in partition %d\n", kind, who, p); \
       action Apply(p, kind); who = 0 }
#else
#define DECIDE_AND(c, p, kind, condition, s, action) \
  :: d_step { CO(c).office == LEADS && CO(c).write == NO_WRITE && DECIDES(c) && !lost[p] && condition -> \
       who = s; printf("coordinator %d decides change %d of server %d in partition %d\n", c, kind, who, p); \
       action Write(c, p, kind, who); who = 0 }
#endif
#define DECIDE(c, p, kind, condition, s) DECIDE_AND(c, p, kind, condition, s, )

inline Write(c, p, kind, s) {
  CO(c).write = kind; CO(c).server = s; CO(c).partition = p;
  CO(c).write_holds = CO(c).holds; CO(c).own = 1
}

#ifdef ADMITTING_WITHOUT_LEASE
#define LEASES_FROM_NOW(p, s)
#else
#define LEASES_FROM_NOW(p, s) HERE(p, s).leased = 1;
#endif
/* A request to admit a learner takes effect when it is decided upon: before, the primary only reads less.
 * server/replication/replica_leases.cc: ReplicaLeases::Admitting
 * server/coordinator/configurations.cc: Reconfigure */
#define RECONFIGURE(c, p, s) \
  DECIDE_AND(c, p, WRITE_ADMIT, ASKS_ADMIT(p, s) && MAY_ADMIT(NOW(p), SEEN(p, s).copy), SEEN(p, s).copy, LEASES_FROM_NOW(p, s)) \
  DECIDE(c, p, WRITE_DROP, ASKS_DROP(p, s) && MAY_DROP(NOW(p), SEEN(p, s).copy), SEEN(p, s).copy) \
  DECIDE(c, p, WRITE_PROMOTE, ASKS_PROMOTE(p, s) && MAY_PROMOTE(NOW(p), s), s)

#ifdef PROGRESS
#define SUITS(s) UP(s)
#define UNSUITED(s) !UP(s)
#else
#define SUITS(s) true
#define UNSUITED(s) true
#endif
/* server/coordinator/configurations.cc: AddLearners */
#define PLACE(c, p, s) DECIDE(c, p, WRITE_LEARNER, MAY_ADD_LEARNER(NOW(p), s) && SUITS(s), s)
/* server/coordinator/configurations.cc: FollowServers */
#define DROP_LEARNER(c, p, s) \
  DECIDE(c, p, WRITE_DROP, MAY_ADMIT(NOW(p), s) && UNSUITED(s), s)

/* ---- coordinators ----------------------------------------------------------------------------- */

#ifdef PROGRESS
#define JOIN(c, s)
#elif defined(ONE_STORE)
/* A process under a server's name, empty. server/coordinator/coordinator_calls.cc: Coordinator::JoinServer */
#define JOIN(c, s) \
  :: d_step { !UP(s) && ROOM -> printf("server %d joins, empty\n", s); \
       who = s; ReplaceAll(); who = 0 }
#else
#define JOIN(c, s) \
  :: d_step { CO(c).office == LEADS && CO(c).write == NO_WRITE && DECIDES(c) && !UP(s) -> Write(c, 0, WRITE_REPLACE, s) }
#endif
#ifdef OTHERS
/* Environment: whatever happens to any number of other partitions, tables and members is a revision, in which nothing
 * changes for this partition, and a transaction of the coordinator. */
#define CHANGE_OTHERS(c) \
  :: d_step { CO(c).office == LEADS && CO(c).write == NO_WRITE && DECIDES(c) -> Write(c, 0, WRITE_OTHER, 0) }
#else
#define CHANGE_OTHERS(c)
#endif
/* etcd makes a transaction only if the leader's key is there that it names. TWO_LEADERS_WRITE: always. */
#ifdef TWO_LEADERS_WRITE
#define HOLDS(c) (CO(c).write != NO_WRITE)
#define DECIDES(c) true
#else
#define HOLDS(c) (CO(c).write != NO_WRITE && CO(c).write_holds)
/* Another leader's decision is a write that etcd refuses: DECIDE_IN_VAIN. */
#define DECIDES(c) CO(c).holds
#endif

/* server/coordinator/coordinator_changes.cc: Coordinator::Impl::SaveStaged */
inline Commit(c, p) {
  who = CO(c).server;
  if
  :: CO(c).write == WRITE_TERM -> saved_term = CO(c).term; CO(c).office = (CO(c).office == LOADED -> LEADS : CO(c).office)
  :: else ->
    CLAIM(terms_grow, CO(c).term >= last_commit_term);
    last_commit_term = CO(c).term;
    if
    :: CO(c).write == WRITE_REPLACE -> ReplaceAll()
#ifdef OTHERS
    :: CO(c).write == WRITE_OTHER -> Revise()
#endif
    :: else -> Apply(p, CO(c).write)
    fi
  fi;
  EndWrite(c);
  who = 0
}

inline EndWrite(c) {
  CO(c).write = NO_WRITE; CO(c).server = 0; CO(c).partition = 0; CO(c).write_holds = 0; CO(c).own = 0;
  if :: CO(c).office == STANDBY -> CO(c).term = 0 :: else fi
}

inline Stand(c) {
  CO(c).office = STANDBY; CO(c).holds = 0; CO(c).own = 0;
  if :: CO(c).write == NO_WRITE -> CO(c).term = 0 :: else fi /* else it is that of the write */
}

inline EndKey() {
  key = 0;
  for (i : 0 .. 1) {
    CO(i).holds = 0; CO(i).write_holds = 0
  };
  i = 0
}

/* A write that etcd will refuse, and a leader whose writes it will refuse. Nothing else of them matters. */
inline Refused() {
#ifndef TWO_LEADERS_WRITE
  for (i : 0 .. 1) {
    if
    :: CO(i).write != NO_WRITE && !CO(i).write_holds ->
#ifdef REFUSED_AT_ONCE
      EndWrite(i)
#else
      CO(i).write = WRITE_IN_VAIN; CO(i).server = 0; CO(i).partition = 0
#endif
    :: else
    fi;
    if
    :: CO(i).office > STANDBY && !CO(i).holds ->
#ifdef REFUSED_AT_ONCE
      Stand(i)
#else
      CO(i).office = LEADS
#endif
    :: else
    fi;
    if :: !CO(i).holds && !CO(i).write_holds -> CO(i).term = 0 :: else fi
  };
  CLAIM(one_write, !(CO(0).write_holds && CO(1).write_holds) && !(CO(0).holds && CO(1).holds));
#endif
  /* Terms are compared, and grow by one. */
  t = saved_term;
  for (i : 0 .. 1) {
    if :: CO(i).term > 0 && CO(i).term < t -> t = CO(i).term :: else fi
  }
  if :: last_commit_term < t -> last_commit_term = t :: else fi;
  t = t - 1;
  saved_term = saved_term - t; last_commit_term = last_commit_term - t;
  for (i : 0 .. 1) {
    if :: CO(i).term > 0 -> CO(i).term = CO(i).term - t :: else fi
  }
  i = 0; t = 0
}

#if P == 1
#define COMMIT_SECOND(c)
#else
#define COMMIT_SECOND(c) :: j == 1 -> Commit(c, 1)
#endif
/* etcd makes the transaction or refuses it. server/coordinator/etcd/etcd_store.cc: EtcdStore::Write */
#define COMMIT(c) \
  :: d_step { HOLDS(c) && (CO(c).write == WRITE_TERM || ROOM) -> printf("coordinator %d (term %d): etcd saves change %d of server %d\n", c, CO(c).term, CO(c).write, CO(c).server); j = CO(c).partition; \
     if :: j == 0 -> Commit(c, 0) COMMIT_SECOND(c) fi }
#if defined(REFUSED_AT_ONCE) || defined(TWO_LEADERS_WRITE)
#define DECIDE_IN_VAIN(c)
#define REFUSE(c)
#else
#define DECIDE_IN_VAIN(c) \
  :: d_step { CO(c).office == LEADS && !CO(c).holds && CO(c).write == NO_WRITE -> CO(c).write = WRITE_IN_VAIN; CO(c).own = 1 }
#define REFUSE(c) \
  :: d_step { CO(c).write != NO_WRITE && !HOLDS(c) -> printf("etcd refuses the write of coordinator %d\n", c); \
       if :: CO(c).own -> Stand(c) :: else fi; EndWrite(c) }
#endif
/* server/coordinator/etcd/leader_election.cc: LeaderElection::Candidate */
#define ELECT(c) \
  :: d_step { CO(c).office == STANDBY && !key -> printf("coordinator %d is elected\n", c); \
       key = 1; CO(c).holds = 1; CO(c).office = ELECTED }
/* server/coordinator/etcd/etcd_store.cc: EtcdStore::Load
 * server/coordinator/coordinator.cc: Coordinator::Impl::BeginTerm */
#define TAKE_OFFICE(c) \
  :: d_step { CO(c).office == ELECTED && CO(c).write == NO_WRITE -> printf("coordinator %d loads the state, term %d\n", c, saved_term + 1); \
       CO(c).office = LOADED; CO(c).term = saved_term + 1; \
       Write(c, 0, WRITE_TERM, 0) }
/* By its own clock, or told by etcd. server/coordinator/etcd/elected_office.cc: ElectedOffice::Follow */
#define RETIRE(c) \
  :: d_step { CO(c).office > STANDBY && !CO(c).holds -> printf("coordinator %d leads no more\n", c); Stand(c) }
/* Environment. */
#define COORDINATOR_CRASHES(c) :: d_step { faults > 0 && CO(c).office > STANDBY -> printf("coordinator %d crashes\n", c); faults--; Stand(c) }
/* Environment: the lease in etcd of a coordinator that has ended ends; that of one that stands still. */
#define KEY_ENDS \
  :: d_step { key && !CO(0).holds && !CO(1).holds -> printf("the leader's key ends\n"); EndKey() }
#define KEY_IS_LOST \
  :: d_step { faults > 0 && (CO(0).holds || CO(1).holds) -> printf("the leader's key is lost\n"); faults--; EndKey() }

#ifdef MIGRATION
/* The coordinator marks the configuration; the primary answers all that it has taken, seals the partition and asks to be
 * replaced; its follower then serves at once.
 * server/replication/hand_overs.cc: HandOvers::Ready, server/coordinator/configurations.cc: Reconfigure */
#define SEAL(p, s) \
  :: d_step { LEADING(p, s) && SEEN(p, s).moves && HERE(p, s).pending == 0 && !HERE(p, s).sealed -> printf("server %d seals partition %d\n", s, p); \
       HERE(p, s).sealed = 1 }
#define MAY_MIGRATE(c, s) (c.copy == s && c.follower && c.moves)
#ifdef HAND_OVER_UNSEALED
#define IS_SEALED(p) true
#else
#define SEALED(p, s) (CURRENT(p, s) && HERE(p, s).sealed)
#define IS_SEALED(p) (SEALED(p, 0) || SEALED(p, 1) || SEALED(p, 2))
#endif
#define MOVE(c, p, s) \
  DECIDE(c, p, WRITE_MOVE, NOW(p).copy == s && NOW(p).follower && MAY_MOVE(NOW(p)), s) \
  DECIDE(c, p, WRITE_MIGRATE, MAY_MIGRATE(NOW(p), s) && IS_SEALED(p), s)
#else
#define SEAL(p, s)
#define MOVE(c, p, s)
#endif
