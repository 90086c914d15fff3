/* After each transition: claims, and one state in place of those that behave in the same way (cluster.pml).
 * docs/model.md: why no counterexample is lost. */

#define SAME(p, n, m) \
  (lost[p] || AT(p, n).number == AT(p, m).number || (SPECTATES(p, n, i) && SPECTATES(p, m, i)))
#if P == 1
#define NOTHING_NEW(n) SAME(0, n, n + 1)
#else
#define NOTHING_NEW(n) (SAME(0, n, n + 1) && SAME(1, n, n + 1))
#endif

/* A server follows revisions in which nothing changes for it. */
inline Advance() {
  for (i : 0 .. S - 1) {
    if
    :: UP(i) ->
      do
      :: view[i] < newest && NOTHING_NEW(view[i]) -> view[i] = view[i] + 1
      :: else -> break
      od
    :: else
    fi
  }
  i = 0
}

/* Revisions before the oldest that a server follows are dropped. */
inline Slide() {
  t = newest;
  for (i : 0 .. S - 1) {
    if :: UP(i) && view[i] < t -> t = view[i] :: else fi
  }
  t = t - 1;
  if
  :: t > 0 ->
    for (j : 0 .. P - 1) {
      for (i : 1 .. newest - t) {
        AT(j, i).epoch = AT(j, i + t).epoch; AT(j, i).number = AT(j, i + t).number;
        AT(j, i).primary = AT(j, i + t).primary; AT(j, i).copy = AT(j, i + t).copy;
        AT(j, i).follower = AT(j, i + t).follower; AT(j, i).since = AT(j, i + t).since
#ifdef MIGRATION
        ; AT(j, i).moves = AT(j, i + t).moves; AT(j, i).sealed = AT(j, i + t).sealed
#endif
      };
      for (i : newest - t + 1 .. newest) {
        ForgetConfiguration(j, i)
      }
    };
    for (i : 0 .. S - 1) {
      if :: UP(i) -> view[i] = view[i] - t :: else fi
    };
    newest = newest - t
  :: else
  fi;
  i = 0; j = 0; t = 0
}

/* Epochs are compared, and grow by one; numbers and `since` are compared. */
inline Renumber(p) {
  if
  :: lost[p] -> skip
  :: else ->
    who = AT(p, 1).epoch - 1;
    t = 0; last = 0;
    for (i : 1 .. newest) {
      AT(p, i).epoch = AT(p, i).epoch - who;
      if :: AT(p, i).number != last -> last = AT(p, i).number; t++ :: else fi;
      AT(p, i).number = t
    };
    t = 0; last = 0;
    for (i : 1 .. newest) {
      if :: AT(p, i).since != 0 && AT(p, i).since != last -> last = AT(p, i).since; t++ :: else fi;
      if :: AT(p, i).since != 0 -> AT(p, i).since = t :: else fi
    }
  fi;
  who = 0; t = 0; last = 0; i = 0
}

/* ---- symmetry --------------------------------------------------------------------------------- */

#define NAMES_SERVER(write) (write != NO_WRITE && write != WRITE_TERM && write != WRITE_IN_VAIN && write != WRITE_OTHER)
#define SWAP(x, y) t = x; x = y; y = t
#define SWAP_NAME(x, a, b) if :: x == a -> x = b :: x == b -> x = a :: else fi

inline SwapParts(x, y) {
  SWAP(x.content, y.content); SWAP(x.done, y.done); SWAP(x.wait, y.wait); SWAP(x.pending, y.pending);
  SWAP(x.answered, y.answered); SWAP(x.required, y.required); SWAP(x.leased, y.leased); SWAP(x.left, y.left);
#if LEASE_READ > 1
  SWAP(x.sent, y.sent);
#endif
#ifdef MIGRATION
  SWAP(x.sealed, y.sealed);
#endif
#ifdef HEARD_TIMES
  SWAP(x.heard, y.heard);
#endif
  t = 0
}

/* Servers differ by name alone. */
inline SwapServers(a, b) {
  printf("servers %d and %d swap their names\n", a, b);
  SWAP(view[a], view[b]); SWAP(slow[a], slow[b]);
  last = rank[a]; rank[a] = rank[b]; rank[b] = last;
  for (j : 0 .. P - 1) {
    SwapParts(HERE(j, a), HERE(j, b));
    if
    :: lost[j] -> skip
    :: else ->
      for (i : 1 .. newest) {
        SWAP_NAME(AT(j, i).primary, a, b);
        SWAP_NAME(AT(j, i).copy, a, b)
      }
    fi
  };
#ifndef ONE_STORE
  for (i : 0 .. 1) {
    if
    :: NAMES_SERVER(CO(i).write) -> SWAP_NAME(CO(i).server, a, b)
    :: else
    fi
  };
#endif
  i = 0; j = 0; t = 0; last = 0
}

#define ROLE(p, s) (lost[p] -> 0 : (NOW(p).primary == s -> 2 : (NOW(p).copy == s -> 1 : 0)))
#define RANK_IN(p, s) \
  (((((ROLE(p, s) * 4 + HERE(p, s).content) * 4 + HERE(p, s).wait) * 4 + HERE(p, s).done) * 2 + HERE(p, s).leased) * 2 + HERE(p, s).left)
#if P == 1
#define RANK(s) ((RANK_IN(0, s) * 8 + view[s]) * 2 + slow[s])
#else
#define RANK(s) (((RANK_IN(0, s) * 1024 + RANK_IN(1, s)) * 8 + view[s]) * 2 + slow[s])
#endif
inline Order(a, b) {
  if :: rank[a] < rank[b] -> SwapServers(a, b) :: else fi
}

#if P == 2
#define PRIMARY_OF(p) HERE(p, NOW(p).primary)
#define RANK_OF_PARTITION(p) \
  ((((((((((lost[p] * 4 + acknowledged[p]) * 4 + NOW(p).number) * 4 + NOW(p).epoch) * 2 + (NOW(p).copy != NOBODY)) * 2 + \
      NOW(p).follower) * 4 + view[NOW(p).primary]) * 4 + PRIMARY_OF(p).done) * 4 + PRIMARY_OF(p).pending) * 2 + \
    PRIMARY_OF(p).leased) * 2 + PRIMARY_OF(p).left)
/* Partitions do, too. */
inline OrderPartitions() {
  if
  :: RANK_OF_PARTITION(0) < RANK_OF_PARTITION(1) ->
    printf("partitions swap their names\n");
    SWAP(lost[0], lost[1]); SWAP(acknowledged[0], acknowledged[1]);
    for (i : 1 .. newest) {
      SWAP(AT(0, i).epoch, AT(1, i).epoch); SWAP(AT(0, i).number, AT(1, i).number);
      SWAP(AT(0, i).primary, AT(1, i).primary); SWAP(AT(0, i).copy, AT(1, i).copy);
      SWAP(AT(0, i).follower, AT(1, i).follower); SWAP(AT(0, i).since, AT(1, i).since);
#ifdef MIGRATION
      SWAP(AT(0, i).moves, AT(1, i).moves); SWAP(AT(0, i).sealed, AT(1, i).sealed);
#endif
    };
    for (i : 0 .. S - 1) {
      SwapParts(HERE(0, i), HERE(1, i))
    };
#ifndef ONE_STORE
    for (i : 0 .. 1) {
      if
      :: NAMES_SERVER(CO(i).write) && CO(i).write != WRITE_REPLACE ->
        CO(i).partition = 1 - CO(i).partition
      :: else
      fi
    };
#endif
    i = 0; t = 0
  :: else
  fi
}
#endif

#ifndef ONE_STORE
#define RANK_OF_COORDINATOR(c) \
  ((((CO(c).office * 2 + CO(c).holds) * 16 + CO(c).write) * 2 + CO(c).own) * 2 + CO(c).write_holds)
inline OrderCoordinators() {
  if
  :: RANK_OF_COORDINATOR(0) < RANK_OF_COORDINATOR(1) ->
    printf("coordinators swap their names\n");
    SWAP(CO(0).office, CO(1).office); SWAP(CO(0).holds, CO(1).holds); SWAP(CO(0).term, CO(1).term);
    SWAP(CO(0).write, CO(1).write); SWAP(CO(0).write_holds, CO(1).write_holds); SWAP(CO(0).own, CO(1).own);
    SWAP(CO(0).server, CO(1).server); SWAP(CO(0).partition, CO(1).partition);
    t = 0
  :: else
  fi
}
#endif

inline Finish() {
  for (j : 0 .. P - 1) {
    Check(j)
  };
  j = 0;
  Advance();
  Slide();
  for (j : 0 .. P - 1) {
    Renumber(j)
  };
  j = 0;
#ifndef ONE_STORE
  Refused();
  OrderCoordinators();
#endif
#if P == 2
  OrderPartitions();
#endif
  for (i : 0 .. S - 1) {
    rank[i] = RANK(i)
  };
  i = 0;
  Order(0, 1);
  Order(1, 2);
  Order(0, 1)
}
