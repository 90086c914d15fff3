// VERBENA_EXPORT: marks what the shared library libverbena shows; everything else is hidden
// (-fvisibility=hidden). C and C++.
//
// **Thread safety**: a macro.
#ifndef VERBENA_PROTO_EXPORT_H_
#define VERBENA_PROTO_EXPORT_H_

// Stands before the name of a public class, or before a public function. Another compiler than gcc
// and clang shows everything, which works too.
#if defined(__GNUC__)
#define VERBENA_EXPORT __attribute__((visibility("default")))
#else
#define VERBENA_EXPORT
#endif

#endif  // VERBENA_PROTO_EXPORT_H_
