// Status codes and error texts of the C client, and the library's version. verbena.h includes this
// file.
//
// **Thread safety**: every function may be called from any thread; each thread has its own last
// error.
#ifndef VERBENA_STATUS_H_
#define VERBENA_STATUS_H_

#include <stdint.h>

#include "verbena/export.h"

#ifdef __cplusplus
extern "C" {
#endif

// Result of a call, with the numbers of gRPC's and Abseil's status codes.
typedef enum verbena_status {
  VERBENA_OK = 0,                   // success
  VERBENA_CANCELLED = 1,            // verbena_ticket_cancel() or verbena_close() ended it
  VERBENA_UNKNOWN = 2,              // a server replied with an unknown code
  VERBENA_INVALID_ARGUMENT = 3,     // an argument is wrong
  VERBENA_DEADLINE_EXCEEDED = 4,    // the text names the cause
  VERBENA_NOT_FOUND = 5,            // there is no such table
  VERBENA_ALREADY_EXISTS = 6,       // a table with another specification; a rank that is taken
  VERBENA_PERMISSION_DENIED = 7,    // the token does not allow this job or call
  VERBENA_RESOURCE_EXHAUSTED = 8,   // no memory, here or at a server; no slot of a lane in time
  VERBENA_FAILED_PRECONDITION = 9,  // closed; lease ended; an observer pushes; not done yet
  VERBENA_ABORTED = 10,             // outcome unknown: this worker's lease ended meanwhile
  VERBENA_OUT_OF_RANGE = 11,        // not used
  VERBENA_UNIMPLEMENTED = 12,       // not supported by this build
  VERBENA_INTERNAL = 13,            // a bug in the library or a server
  VERBENA_UNAVAILABLE = 14,         // the server or the coordinator does not respond
  VERBENA_DATA_LOSS = 15,           // the last replica of a partition is lost
  VERBENA_UNAUTHENTICATED = 16      // TLS verification failed, or the token is not valid
} verbena_status;

// Version of the loaded library, "1.2.3". VERBENA_VERSION_STRING is the version at compile time.
VERBENA_EXPORT const char* verbena_version(void);
// "INVALID_ARGUMENT" for VERBENA_INVALID_ARGUMENT; "?" for other numbers.
VERBENA_EXPORT const char* verbena_status_name(int32_t status);
// Error text of this thread's last failed call; "" if none failed. Valid until the next failed call
// of this thread.
VERBENA_EXPORT const char* verbena_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // VERBENA_STATUS_H_
