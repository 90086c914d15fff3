// VERBENA_EXPORT marks the symbols that the shared library libverbena exports. All others are
// hidden (-fvisibility=hidden). For C and C++.
//
// **Thread safety**: a macro.
#ifndef VERBENA_EXPORT_H_
#define VERBENA_EXPORT_H_

// Stands before the name of a public class or function. Compilers other than gcc and clang export
// everything, which works too.
#if defined(__GNUC__)
#define VERBENA_EXPORT __attribute__((visibility("default")))
#else
#define VERBENA_EXPORT
#endif

#endif  // VERBENA_EXPORT_H_
