// A library that is no driver we can use: it lacks almost everything.
extern "C" __attribute__((visibility("default"))) int cuInit(unsigned) { return 0; }
