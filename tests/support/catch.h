#pragma once

// Includes the installed Catch2: version 2 on Debian 12, version 3 on later systems.
#include <catch2/catch.hpp>
