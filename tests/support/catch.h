#pragma once

// The one place that knows which Catch2 this is: Debian 12 ships version 2, later ones version 3.
#include <catch2/catch.hpp>
