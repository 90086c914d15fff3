// How calls of the client in C end, the text of what failed, and the library's version. verbena.h
// includes this.
//
// **Thread safety**: every function may be called from any thread; each thread has its own text of
// what failed last.
#ifndef VERBENA_CLIENT_C_STATUS_H_
#define VERBENA_CLIENT_C_STATUS_H_

#include <stdint.h>

#include "proto/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// How a call ended: the numbers of gRPC's and Abseil's status codes.
typedef enum verbena_status {
  VERBENA_OK = 0,                   // it did what it says
  VERBENA_CANCELLED = 1,            // verbena_ticket_cancel() or verbena_close() ended it
  VERBENA_UNKNOWN = 2,              // a server answered with no code that is known
  VERBENA_INVALID_ARGUMENT = 3,     // the call is wrong
  VERBENA_DEADLINE_EXCEEDED = 4,    // the text says what was waited for
  VERBENA_NOT_FOUND = 5,            // there is no such table
  VERBENA_ALREADY_EXISTS = 6,       // a table with another specification; a rank that is taken
  VERBENA_PERMISSION_DENIED = 7,    // the server does not let this worker do it
  VERBENA_RESOURCE_EXHAUSTED = 8,   // no memory, here or at a server; no slot of a lane in time
  VERBENA_FAILED_PRECONDITION = 9,  // closed; lease ended; an observer pushes; not done yet
  VERBENA_ABORTED = 10,             // outcome unknown: this worker's lease ended meanwhile
  VERBENA_OUT_OF_RANGE = 11,        // not used
  VERBENA_UNIMPLEMENTED = 12,       // this build cannot do it
  VERBENA_INTERNAL = 13,            // a mistake of the library or a server
  VERBENA_UNAVAILABLE = 14,         // the server or the coordinator does not answer
  VERBENA_DATA_LOSS = 15,           // the only copy of a partition is gone
  VERBENA_UNAUTHENTICATED = 16      // TLS: one side does not believe the other; the text says why
} verbena_status;

// The version of the library that runs, "1.2.3": VERBENA_VERSION_STRING is the one compiled with.
VERBENA_EXPORT const char* verbena_version(void);
// "INVALID_ARGUMENT" for VERBENA_INVALID_ARGUMENT; "?" for a number that is no status.
VERBENA_EXPORT const char* verbena_status_name(int32_t status);
// The text of the last call of this thread that failed, "" when none did. Valid until the next one
// fails on this thread.
VERBENA_EXPORT const char* verbena_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_CLIENT_C_STATUS_H_
