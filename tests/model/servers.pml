/* Servers: views, pushes, catch-up, requests, leases and crashes (cluster.pml). */

/* ---- servers ---------------------------------------------------------------------------------- */

inline Acknowledge(p, k) {
  if :: k > acknowledged[p] -> acknowledged[p] = k :: else fi
}

inline ForgetCopy(p, s) {
  HERE(p, s).pending = 0; HERE(p, s).answered = 0; HERE(p, s).required = 0;
  HERE(p, s).leased = 0; HERE(p, s).left = 0
#if LEASE_READ > 1
  ; HERE(p, s).sent = 0
#endif
}

inline Forget(p, s) {
  HERE(p, s).content = NOTHING; HERE(p, s).done = 0
}

inline ForgetPart(p, s) {
  ForgetCopy(p, s); Forget(p, s);
#ifdef MIGRATION
  HERE(p, s).sealed = 0;
#endif
#ifdef HEARD_TIMES
  HERE(p, s).heard = 0;
#endif
  HERE(p, s).wait = 0
}

/* shard/view/view_follower.cc: ViewFollower::UpdatePartitions
 * server/replication/replica_leases.cc: ReplicaLeases::Follow */
inline Follow(p, s, n) {
  if
  :: lost[p] -> skip
  :: !lost[p] && IS_PRIMARY(AT(p, n), s) ->
    if
    :: IS_PRIMARY(SEEN(p, s), s) && SEEN(p, s).epoch == AT(p, n).epoch ->
      if
      :: SEEN(p, s).copy == AT(p, n).copy && SEEN(p, s).since == AT(p, n).since ->
        HERE(p, s).leased = HERE(p, s).leased || AT(p, n).follower
      :: else ->
        /* shard/replica/log.cc: ReplicaLog::SetCopies. The copy is not waited for any more. */
        if
        :: HERE(p, s).pending > 0 ->
          HERE(p, s).done = HERE(p, s).pending;
          Acknowledge(p, HERE(p, s).pending)
        :: else
        fi;
        ForgetCopy(p, s);
        HERE(p, s).leased = AT(p, n).follower
      fi
    :: else ->
      /* Content goes from a copy to the next epoch alone. */
      if
      :: IS_COPY(SEEN(p, s), s) && HERE(p, s).content == COMPLETE && AT(p, n).epoch == SEEN(p, s).epoch + 1 -> skip
      :: else -> Forget(p, s)
      fi;
#ifdef FORGETS_GIVEN_LEASE
      HERE(p, s).wait = 0;
#endif
#ifdef HEARD_TIMES
      if
      :: IS_COPY(SEEN(p, s), s) && SEEN(p, s).follower && HERE(p, s).heard > HERE(p, s).wait ->
        HERE(p, s).wait = HERE(p, s).heard
      :: else
      fi;
#endif
#ifdef MIGRATION
      if :: AT(p, n).sealed -> HERE(p, s).wait = 0 :: else fi;
#endif
      ForgetCopy(p, s)
    fi
  :: !lost[p] && IS_COPY(AT(p, n), s) ->
    if
    :: IS_COPY(SEEN(p, s), s) && SEEN(p, s).since == AT(p, n).since -> skip
    :: else ->
      HERE(p, s).content = LEARNING; HERE(p, s).done = 0
#ifdef HEARD_TIMES
      ; HERE(p, s).heard = LEASE
#endif
    fi;
    ForgetCopy(p, s)
  :: else -> /* shard/replica/log.cc: ReplicaLog::Clear */
    Forget(p, s); ForgetCopy(p, s)
  fi;
#ifdef HEARD_TIMES
  if
  :: lost[p] || SPECTATES(p, n, s) || AT(p, n).copy == NOBODY -> HERE(p, s).heard = 0
  :: else ->
    if
    :: IS_PRIMARY(AT(p, n), s) && (!IS_PRIMARY(SEEN(p, s), s) || SEEN(p, s).since != AT(p, n).since) ->
      HERE(p, s).heard = LEASE
    :: else
    fi
  fi;
#endif
#ifdef MIGRATION
  if :: !AT(p, n).moves || !IS_PRIMARY(AT(p, n), s) -> HERE(p, s).sealed = 0 :: else fi;
#endif
  skip
}

/* All partitions at once: a view has one revision. It may miss any number of those before.
 * server/membership.cc: Membership::Impl::Continues */
#define VIEW(s, more) \
  :: d_step { UP(s) && view[s] + more <= newest -> printf("server %d follows revision %d of %d\n", s, view[s] + more, newest); \
       for (j : 0 .. P - 1) { Follow(j, s, view[s] + more) }; \
       view[s] = view[s] + more; j = 0 }
#define VIEWS(s) VIEW(s, 1) VIEW(s, 2) VIEW(s, 3) VIEW(s, 4)

/* The worker sends push acknowledged + 1 to any server, again and again; it has any view.
 * shard/replica/log.cc: ReplicaLog::Add */
#define PUSH(p, s) \
  :: d_step { acknowledged[p] < W && SERVES(p, s) && HERE(p, s).pending == 0 && \
              HERE(p, s).done >= acknowledged[p] -> printf("server %d takes push %d\n", s, acknowledged[p] + 1); \
       if \
       :: HERE(p, s).done == acknowledged[p] && REQUIRES(p, s) -> HERE(p, s).pending = acknowledged[p] + 1 \
       :: else -> \
         if :: HERE(p, s).done == acknowledged[p] -> HERE(p, s).done = acknowledged[p] + 1 :: else fi; \
         acknowledged[p] = acknowledged[p] + 1 \
       fi }

#ifdef NEVER_SENDS_AGAIN
#define SENDS(p, s) (COPY_OF(p, s).done < HERE(p, s).pending)
#else
#define SENDS(p, s) true
#endif
/* The copy takes the next record; before the first it makes the partition new.
 * shard/replica/copies.cc: Copies::Begin
 * shard/replica/copies.cc: Copies::Replicate */
#define RECORD(p, s) \
  :: d_step { COPY_TAKES(p, s) && COPY_OF(p, s).content != NOTHING && \
       (COPY_OF(p, s).done < HERE(p, s).done || \
        (HERE(p, s).pending > 0 && COPY_OF(p, s).content == COMPLETE && !HERE(p, s).answered && SENDS(p, s))) -> printf("the copy on server %d takes a record of server %d\n", SEEN(p, s).copy, s); \
       if \
       :: COPY_OF(p, s).done < HERE(p, s).done || COPY_OF(p, s).done < HERE(p, s).pending -> \
         COPY_OF(p, s).done = COPY_OF(p, s).done + 1 \
       :: else \
       fi; \
       if \
       :: HERE(p, s).pending > 0 && COPY_OF(p, s).done >= HERE(p, s).pending -> HERE(p, s).answered = 1 \
       :: else \
       fi }

/* shard/replica/log.cc: ReplicaLog::Answered */
#define ANSWER(p, s) \
  :: d_step { LEADING(p, s) && HERE(p, s).answered -> printf("server %d has the answer for push %d\n", s, HERE(p, s).pending); \
       HERE(p, s).done = HERE(p, s).pending; Acknowledge(p, HERE(p, s).pending); \
       HERE(p, s).pending = 0; HERE(p, s).answered = 0 }

/* The copy has proved that it has everything: from now on it is waited for.
 * shard/replica/catch_up.cc: CatchUp::ReplicateLearner
 * shard/replica/log.cc: ReplicaLog::Complete */
#define COMPLETED(p, s) \
  :: d_step { COPY_TAKES(p, s) && !SEEN(p, s).follower && !HERE(p, s).required && \
       COPY_OF(p, s).content == LEARNING && COPY_OF(p, s).done == HERE(p, s).done -> printf("server %d waits for its learner from now on\n", s); \
       HERE(p, s).required = 1 }
/* The copy takes the last record of its catch-up. shard/replica/copies.cc: Copies::Replicate */
#define TAKE_COMPLETE(p, s) \
  :: d_step { COPY_TAKES(p, s) && HERE(p, s).required && COPY_OF(p, s).content == LEARNING && \
       COPY_OF(p, s).done >= HERE(p, s).done -> printf("the learner of server %d has everything\n", s); COPY_OF(p, s).content = COMPLETE }

/* ---- requests to the coordinator -------------------------------------------------------------- */

/* A request names the configuration that it changes. Its way to the coordinator takes no time here:
 * what it needs remains true until the configuration is another one, and the change may be saved
 * later. */
#ifdef ADMITTED_BEFORE_COMPLETE
#define HAS_ALL(p, s) (COPY_TAKES(p, s) && COPY_OF(p, s).content != NOTHING)
#else
/* shard/replica/copy_set.h: CaughtUp */
#define HAS_ALL(p, s) (COPY_TAKES(p, s) && HERE(p, s).required && COPY_OF(p, s).content == COMPLETE)
#endif
/* Not before the lease of the former primary has passed: the learner did not grant it, and would
 * not wait for its end if it were promoted meanwhile. */
#ifdef ADMITTED_WHILE_WAITING
#define LEASE_HAS_PASSED(p, s) true
#else
#define LEASE_HAS_PASSED(p, s) MAY_SERVE(HERE(p, s).wait)
#endif
/* server/replication/replication.cc: Replication::Reconfigure */
#define ASKS_ADMIT(p, s) (HAS_COPY(p, s) && CURRENT(p, s) && HAS_ALL(p, s) && LEASE_HAS_PASSED(p, s))
/* server/replication/replica_leases.cc: ReplicaLeases::Judge
 * server/replication/replication.cc: Replication::Judge */
#if defined(NEVER_PROMOTES)
#define GIVES_UP(p, s) false
#elif defined(PROGRESS)
#define GIVES_UP(p, s) (HERE(p, s).heard == 0)
#else
#define GIVES_UP(p, s) true
#endif
#define ASKS_DROP(p, s) (HAS_COPY(p, s) && CURRENT(p, s) && GIVES_UP(p, s))
/* Also a server that leaves: its follower is promoted whether it has heard it or not.
 * server/coordinator/configurations.cc: HandOver */
#define ASKS_PROMOTE(p, s) \
  (UP(s) && !lost[p] && CURRENT(p, s) && IS_COPY(SEEN(p, s), s) && GIVES_UP(p, s))

/* ---- leases ----------------------------------------------------------------------------------- */

#ifdef HEARD_TIMES
#define HEARD(p, s) ; HERE(p, s).heard = LEASE
#else
#define HEARD(p, s)
#endif
/* A planted fault. Couples partitions: the answer for one renews the lease of each that has the same follower. */
#ifdef RENEWS_ALL_PARTITIONS
#define RENEWED(p, s) \
  if :: HAS_COPY(1 - p, s) && SEEN(1 - p, s).copy == SEEN(p, s).copy -> HERE(1 - p, s).left = LEASE_READ :: else fi;
#else
#define RENEWED(p, s)
#endif

#if LEASE_READ == 1
/* A beacon that arrives later than the sender's next tick gives nothing: it is sent and answered in one transition.
 * server/replication/replication.cc: Replication::SendBeacon
 * server/replication/replica_leases.cc: ReplicaLeases::OnBeacon
 * server/replication/replica_leases.cc: ReplicaLeases::Acknowledged */
#define BEACON(p, s) \
  :: d_step { COPY_TAKES(p, s) && HERE(p, s).left == 0 -> printf("server %d has the answer to its beacon for partition %d from server %d\n", s, p, SEEN(p, s).copy); \
       COPY_OF(p, s).wait = LEASE HEARD(p, SEEN(p, s).copy); \
       RENEWED(p, s) HERE(p, s).left = LEASE_READ HEARD(p, s) }
#define BEACON_ANSWER(p, s)
#else
/* One beacon is on the way at a time. A later answer to it would give less of the lease.
 * server/replication/replication.cc: Replication::SendBeacon */
#define BEACON(p, s) \
  :: d_step { HAS_COPY(p, s) && HERE(p, s).sent < LEASE_READ && HERE(p, s).left < LEASE_READ -> printf("server %d sends a beacon\n", s); \
       HERE(p, s).sent = LEASE_READ }
/* server/replication/replica_leases.cc: ReplicaLeases::OnBeacon
 * server/replication/replica_leases.cc: ReplicaLeases::Acknowledged */
#define BEACON_ANSWER(p, s) \
  :: d_step { HERE(p, s).sent > 0 && COPY_TAKES(p, s) -> printf("server %d has the answer to its beacon from server %d, lease %d\n", s, SEEN(p, s).copy, HERE(p, s).sent); \
       COPY_OF(p, s).wait = LEASE HEARD(p, SEEN(p, s).copy); \
       if :: HERE(p, s).sent > HERE(p, s).left -> HERE(p, s).left = HERE(p, s).sent :: else fi; \
       HERE(p, s).sent = 0 HEARD(p, s) }
#endif

inline Down(x) {
  if :: x > 0 -> x = x - 1 :: else fi
}

/* Environment: time passes. */
inline Tick() {
  printf("time passes; slow clocks: %d %d %d, phase %d\n", slow[0], slow[1], slow[2], phase);
  for (i : 0 .. S - 1) {
    if
    :: slow[i] && phase == 0 -> skip
    :: else ->
      for (j : 0 .. P - 1) {
        Down(HERE(j, i).wait); Down(HERE(j, i).left)
#if LEASE_READ > 1
        ; Down(HERE(j, i).sent)
#endif
#ifdef HEARD_TIMES
        ; Down(HERE(j, i).heard)
#endif
      }
    fi
  }
  if :: slow[0] || slow[1] || slow[2] -> phase = (phase + 1) % SLOW :: else fi;
  j = 0
}

/* ---- faults of servers ------------------------------------------------------------------------ */

inline Crash(s) {
  faults--;
  view[s] = 0;
  for (j : 0 .. P - 1) {
    ForgetPart(j, s)
  };
  j = 0
}
