#include <cstdio>

#include "tests/abi/layout.h"

/// Prints the layout of this tree's headers. A new release stores it as its golden file.
int main() { std::fputs(shardrun::test::to_string(shardrun::test::compiled_layout()).c_str(), stdout); }
