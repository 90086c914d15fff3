// Rules of a partition's configuration and of its servers, in the common subset of Promela and C++:
// cluster.pml includes them as transitions of the model, trace_checker.cc as the relation that runs
// of the simulator are checked against.
//
// A configuration `c` has the fields epoch, number, primary, copy (NOBODY: none), follower (of the
// copy; else it is a learner), since, and with planned moves `moves`. A rule MAY_X is a condition
// on the configuration before step X; X changes a copy of it, whose number has grown by 1 already.
// Each rule names the function that implements it; references_test.py finds these.
#ifndef VERBENA_TESTS_MODEL_RULES_H_
#define VERBENA_TESTS_MODEL_RULES_H_

// server/coordinator/configurations.cc: AddLearners
#define MAY_ADD_LEARNER(c, s) (c.primary != NOBODY && c.copy == NOBODY && c.primary != s)
#define ADD_LEARNER(c, s) \
  c.copy = s;             \
  c.follower = 0;         \
  c.since = c.number

// server/coordinator/configurations.cc: Admit
#define MAY_ADMIT(c, s) (c.copy == s && !c.follower)
#define ADMIT(c, s) c.follower = 1

// server/coordinator/configurations.cc: DropReplica
#define MAY_DROP(c, s) (c.copy == s)
#define DROP(c, s) \
  c.copy = NOBODY; \
  c.follower = 0;  \
  c.since = 0

// server/coordinator/configurations.cc: MakePrimary
#define MAKE_PRIMARY(c, s) \
  c.primary = s;           \
  c.epoch = c.epoch + 1;   \
  c.copy = NOBODY;         \
  c.follower = 0;          \
  c.since = 0

// A configuration that is to be handed over: its field `moves`.
// server/coordinator/configuration_moves.cc: BeginMove
// server/coordinator/moves.cc: DrainServer
#define MAY_MOVE(c) (!c.moves)
#define MOVE_ON(c) c.moves = 1
// server/coordinator/configuration_moves.cc: EndMove
#define MAY_STAY(c) (c.moves)
#define STAY(c) c.moves = 0

// server/coordinator/configurations.cc: Promote
#if defined(LEARNER_PROMOTED_BEFORE_ADMITTED)
#define MAY_PROMOTE(c, s) (c.copy == s)
#else
#define MAY_PROMOTE(c, s) (c.copy == s && c.follower)
#endif

// Of a server that has `c` in its view.
// server/replication/replica_leases.cc: ReplicaLeases::FollowPrimary
#define IS_PRIMARY(c, s) (c.primary == s)
// server/replication/replica_leases.cc: ReplicaLeases::Follow
#define IS_COPY(c, s) (c.primary != s && c.copy == s)

// A replica takes a record or a beacon of `from`, sent by the configuration `sent`.
// shard/replica/copies.cc: Copies::CheckSender
// server/replication/replica_leases.cc: ReplicaLeases::OnBeacon
#if defined(REPLICA_IGNORES_EPOCH)
#define MAY_TAKE(c, s, sent, from) (sent.primary == from && sent.copy == s)
#else
#define MAY_TAKE(c, s, sent, from) \
  (IS_COPY(c, s) && c.primary == from && c.epoch == sent.epoch && c.since == sent.since)
#endif

// `wait`: time until the leases have passed that it granted. `left`: of the lease that it has.
// server/replication/replica_leases.h: MayServe
#define MAY_SERVE(wait) (wait == 0)
// server/replication/replica_leases.h: MayRead
#if defined(OLD_PLACE_ANSWERS)
#define MAY_READ(wait, leased, left) (MAY_SERVE(wait))
#else
#define MAY_READ(wait, leased, left) (MAY_SERVE(wait) && (!leased || left > 0))
#endif

#endif  // VERBENA_TESTS_MODEL_RULES_H_
