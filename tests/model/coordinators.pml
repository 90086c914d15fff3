/* Changes of configurations, and the coordinators that save them (cluster.pml). */

/* ---- changes of configurations ---------------------------------------------------------------- */

inline CopyConfiguration(p, from) {
  t = from + 1;
  AT(p, t).epoch = AT(p, from).epoch; AT(p, t).number = t;
  AT(p, t).primary = AT(p, from).primary; AT(p, t).copy = AT(p, from).copy;
  AT(p, t).follower = AT(p, from).follower; AT(p, t).since = AT(p, from).since;
#ifdef MIGRATION
  AT(p, t).moves = 0; AT(p, t).sealed = 0;
#endif
  newest[p] = t
}

/* server/coordinator/configurations.cc: ReplaceServer */
inline Replace(p) {
  if
  :: lost[p] -> skip
  :: !lost[p] && AT(p, base).primary == who && AT(p, base).follower ->
    CopyConfiguration(p, base);
    MAKE_PRIMARY(NOW(p), AT(p, base).copy)
  :: !lost[p] && AT(p, base).primary == who && !AT(p, base).follower -> lost[p] = 1
  :: !lost[p] && AT(p, base).copy == who ->
    CopyConfiguration(p, base);
    DROP(NOW(p), who)
  :: else
  fi;
  HERE(p, who).view = newest[p]
}

/* Makes configuration base + 1 by `kind`, of or for server `who`. */
inline Apply(p, kind) {
  CopyConfiguration(p, base);
  if
  :: kind == WRITE_LEARNER -> ADD_LEARNER(NOW(p), who)
  :: kind == WRITE_ADMIT -> ADMIT(NOW(p), who)
  :: kind == WRITE_DROP -> DROP(NOW(p), who)
  :: kind == WRITE_PROMOTE ->
    CLAIM(only_admitted, AT(p, base).follower);
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
#define BASE(c, p) NOW(p)
#define DECIDE(c, p, kind, condition, s) \
  :: d_step { !lost[p] && newest[p] < MAXC && condition -> \
       who = s; printf("change %d of server %d to configuration %d of partition %d\n", kind, who, newest[p], p); \
       base = newest[p]; Apply(p, kind); who = 0; base = 0 }
#else
#define BASE(c, p) AT(p, CO(c).base[p])
#define DECIDE(c, p, kind, condition, s) \
  :: d_step { CO(c).office == LEADS && CO(c).write == NO_WRITE && !lost[p] && CO(c).base[p] < MAXC && condition -> \
       t = s; printf("coordinator %d decides change %d of server %d\n", c, kind, t); \
       Write(c, p, kind, t); t = 0 }
#endif

inline Write(c, p, kind, s) {
  CO(c).write = kind; CO(c).server = s; CO(c).partition = p; CO(c).write_key = CO(c).key;
  for (j : 0 .. P - 1) {
    CO(c).write_base[j] = CO(c).base[j]
  };
  j = 0
}

#if defined(CONFIGURATION_NOT_COMPARED) || defined(ONE_STORE)
#define COMPARED(c, p) true
#else
#define COMPARED(c, p) (CO(c).base[p] == newest[p])
#endif
#ifdef ADMITTING_WITHOUT_LEASE
#define LEASES_FROM_NOW(p, s)
#else
#define LEASES_FROM_NOW(p, s) HERE(p, s).leased = 1;
#endif
/* server/replication/replica_leases.cc: ReplicaLeases::Admitting. The request follows. */
#define ADMITTING(p, s) \
  :: d_step { !HERE(p, s).leased && ASKS_ADMIT(p, s) -> printf("server %d asks to admit its learner\n", s); LEASES_FROM_NOW(p, s) skip }
#ifdef ADMITTING_WITHOUT_LEASE
#define IS_LEASED(p, s) true
#else
#define IS_LEASED(p, s) HERE(p, s).leased
#endif
/* server/coordinator/configurations.cc: Reconfigure */
#define RECONFIGURE(c, p, s) \
  DECIDE(c, p, WRITE_ADMIT, ASKS_ADMIT(p, s) && IS_LEASED(p, s) && COMPARED(c, p) && MAY_ADMIT(BASE(c, p), SEEN(p, s).copy), SEEN(p, s).copy) \
  DECIDE(c, p, WRITE_DROP, ASKS_DROP(p, s) && COMPARED(c, p) && MAY_DROP(BASE(c, p), SEEN(p, s).copy), SEEN(p, s).copy) \
  DECIDE(c, p, WRITE_PROMOTE, ASKS_PROMOTE(p, s) && COMPARED(c, p) && MAY_PROMOTE(BASE(c, p), s), s)

#ifdef PROGRESS
#define SUITS(s) up[s]
#define UNSUITED(s) !up[s]
#else
#define SUITS(s) true
#define UNSUITED(s) true
#endif
/* server/coordinator/configurations.cc: AddLearners */
#define PLACE(c, p, s) DECIDE(c, p, WRITE_LEARNER, MAY_ADD_LEARNER(BASE(c, p), s) && SUITS(s), s)
/* server/coordinator/configurations.cc: FollowServers */
#define DROP_LEARNER(c, p, s) \
  DECIDE(c, p, WRITE_DROP, MAY_ADMIT(BASE(c, p), s) && UNSUITED(s), s)

/* ---- coordinators ----------------------------------------------------------------------------- */

#ifdef PROGRESS
#define JOIN(c, s)
#elif defined(ONE_STORE)
/* A process under a server's name, empty. server/coordinator/coordinator_calls.cc: Coordinator::JoinServer */
#define JOIN(c, s) \
  :: d_step { !up[s] && FITS_ALL -> printf("server %d joins, empty\n", s); \
       who = s; \
       for (j : 0 .. P - 1) { base = newest[j]; Replace(j) }; \
       up[s] = 1; who = 0; base = 0; \
       j = 0 }
#else
#define JOIN(c, s) \
  :: d_step { CO(c).office == LEADS && CO(c).write == NO_WRITE && !up[s] -> Write(c, 0, WRITE_REPLACE, s) }
#endif
#if P == 1
#define SAME_BASE(c) CO(c).write_base[0] == newest[0]
#define FITS_ALL newest[0] < MAXC
#else
#define SAME_BASE(c) CO(c).write_base[0] == newest[0] && CO(c).write_base[1] == newest[1]
#define FITS_ALL newest[0] < MAXC && newest[1] < MAXC
#endif
#define FITS(c) (CO(c).write != WRITE_REPLACE || (FITS_ALL))
#ifdef TWO_LEADERS_WRITE
#define HOLDS(c) true
#else
#define HOLDS(c) (CO(c).write_key == leader_key && SAME_BASE(c))
#endif

/* server/coordinator/coordinator_changes.cc: Coordinator::Impl::SaveStaged */
inline Commit(c, p) {
  who = CO(c).server;
  base = CO(c).write_base[p];
  if
  :: CO(c).write == WRITE_TERM -> saved_term = CO(c).term; CO(c).office = (CO(c).office == LOADED -> LEADS : CO(c).office)
  :: else ->
    CLAIM(terms_grow, CO(c).term >= last_commit_term);
    last_commit_term = CO(c).term;
    if
    :: CO(c).write == WRITE_REPLACE ->
      for (j : 0 .. P - 1) {
        base = CO(c).write_base[j];
        Replace(j)
      }
      up[who] = 1
    :: else -> Apply(p, CO(c).write)
    fi
  fi;
  if
  :: CO(c).office == LEADS && CO(c).key == CO(c).write_key ->
    for (j : 0 .. P - 1) {
      CO(c).base[j] = newest[j]
    }
  :: else
  fi;
  EndWrite(c);
  who = 0; base = 0;
  j = 0
}

inline EndWrite(c) {
  CO(c).write = NO_WRITE; CO(c).server = 0; CO(c).partition = 0; CO(c).write_key = 0;
  if :: CO(c).office == STANDBY -> CO(c).term = 0 :: else fi;
  for (j : 0 .. P - 1) {
    CO(c).write_base[j] = 0
  };
  j = 0
}

inline Stand(c) {
  CO(c).office = STANDBY; CO(c).key = 0;
  if :: CO(c).write == NO_WRITE -> CO(c).term = 0 :: else fi; /* else it is that of the write */
  for (j : 0 .. P - 1) {
    CO(c).base[j] = 0
  };
  j = 0
}

#if P == 1
#define COMMIT_SECOND(c)
#else
#define COMMIT_SECOND(c) :: j == 1 -> Commit(c, 1)
#endif
/* etcd makes the transaction or refuses it. server/coordinator/etcd/etcd_store.cc: EtcdStore::Write */
#define COMMIT(c) \
  :: d_step { CO(c).write != NO_WRITE && HOLDS(c) && FITS(c) -> printf("coordinator %d (term %d): etcd saves change %d of server %d to configuration %d\n", c, CO(c).term, CO(c).write, CO(c).server, CO(c).write_base[0]); j = CO(c).partition; \
     if :: j == 0 -> Commit(c, 0) COMMIT_SECOND(c) fi }
#define REFUSE(c) \
  :: d_step { CO(c).write != NO_WRITE && !(HOLDS(c)) -> printf("etcd refuses the write of coordinator %d\n", c); \
       if :: CO(c).key == CO(c).write_key -> Stand(c) :: else fi; EndWrite(c) }
/* server/coordinator/etcd/leader_election.cc: LeaderElection::Candidate */
#define ELECT(c) \
  :: d_step { CO(c).office == STANDBY && leader_key == 0 -> printf("coordinator %d is elected\n", c); \
       last_key++; leader_key = last_key; CO(c).key = last_key; CO(c).office = ELECTED }
/* server/coordinator/etcd/etcd_store.cc: EtcdStore::Load
 * server/coordinator/coordinator.cc: Coordinator::Impl::BeginTerm */
#define TAKE_OFFICE(c) \
  :: d_step { CO(c).office == ELECTED && CO(c).write == NO_WRITE -> printf("coordinator %d loads the state, term %d\n", c, saved_term + 1); \
       CO(c).office = LOADED; CO(c).term = saved_term + 1; \
       for (j : 0 .. P - 1) { CO(c).base[j] = newest[j] }; \
       Write(c, 0, WRITE_TERM, 0) }
/* By its own clock, or told by etcd. server/coordinator/etcd/elected_office.cc: ElectedOffice::Follow */
#define RETIRE(c) \
  :: d_step { CO(c).office > STANDBY && CO(c).key != leader_key -> printf("coordinator %d leads no more\n", c); Stand(c) }
/* Environment. */
#define COORDINATOR_CRASHES(c) :: d_step { faults > 0 && CO(c).office > STANDBY -> printf("coordinator %d crashes\n", c); faults--; Stand(c) }
#define KEY(c) (CO(c).office > STANDBY && CO(c).key == leader_key)
/* Environment: the lease in etcd of a coordinator that has ended ends; that of one that stands still. */
#define KEY_ENDS \
  :: d_step { leader_key > 0 && !KEY(0) && !KEY(1) -> printf("the leader's key ends\n"); leader_key = 0 }
#define KEY_IS_LOST \
  :: d_step { faults > 0 && (KEY(0) || KEY(1)) -> printf("the leader's key is lost\n"); faults--; leader_key = 0 }

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
  DECIDE(c, p, WRITE_MOVE, BASE(c, p).copy == s && BASE(c, p).follower && MAY_MOVE(BASE(c, p)), s) \
  DECIDE(c, p, WRITE_MIGRATE, COMPARED(c, p) && MAY_MIGRATE(BASE(c, p), s) && IS_SEALED(p), s)
#else
#define SEAL(p, s)
#define MOVE(c, p, s)
#endif
