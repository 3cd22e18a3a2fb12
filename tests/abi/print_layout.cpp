#include <cstdio>

#include "tests/abi/layout.h"

/// Prints the layout of this tree's headers: the golden file of a release, when there is a new one.
int main() { std::fputs(shardrun::test::to_string(shardrun::test::compiled_layout()).c_str(), stdout); }
