// The main() of every Catch2 binary, compiled once.
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
