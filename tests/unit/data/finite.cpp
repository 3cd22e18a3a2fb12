#include "core/data/finite.h"

#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun;
using namespace shardrun::test;
using Catch::Contains;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::string refusal(const std::string& file, int threads = 1) {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", file);
  return error_of([&] { data::require_finite(data::NpyArray(files::SteadyFile(folder / "x.npy")), threads); });
}

/// A column of so many values.
std::string column(const std::vector<float>& values) {
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  return npy_file("{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(values.size()) + ",), }",
                  bytes);
}

}  // namespace

TEST_CASE("the first value that is not finite is named by file, row and column", "[data]") {
  CHECK(refusal(npy_file<float>("<f4", "(2, 2)", {FLT_MAX, -FLT_MAX, 0, FLT_MIN})) == "nothing");
  CHECK_THAT(refusal(npy_file<float>("<f4", "(2, 3)", {0, 1, 2, 3, not_a_number, infinity})),
             Contains("x.npy' has NaN in row 1, column 1 (counted from 0)"));
  CHECK_THAT(refusal(npy_file<float>("<f4", "(3,)", {0, 1, -infinity})), Contains("has -Inf in row 2 (counted"));
  CHECK_THAT(refusal(npy_file<float>("<f4", "(1, 2, 2)", {0, 1, infinity, 3})), Contains("Inf in row 0, at [1, 0]"));
  CHECK(refusal(npy_file<std::int32_t>("<i4", "(1,)", {0x7fc00000})) == "nothing");
}

TEST_CASE("a double that float32 cannot hold is named too", "[data]") {
  CHECK_THAT(refusal(npy_file<double>("<f8", "(2, 1)", {1, 1e300})),
             Contains("has 1e+300, which float32 cannot hold in row 1, column 0"));
  CHECK_THAT(refusal(npy_file<double>("<f8", "(1,)", {std::nan("")})), Contains("has NaN in row 0"));
}

TEST_CASE("however many threads look, the first is named", "[data]") {
  constexpr std::size_t rows = std::size_t{5} << 20U;
  std::vector<float> values(rows, 1);
  CHECK(refusal(column(values), 4) == "nothing");
  values[rows - 1] = not_a_number;
  CHECK_THAT(refusal(column(values), 4), Contains("in row 5242879 "));
  values[(std::size_t{2} << 20U) + 5] = infinity;
  values[(std::size_t{2} << 20U) + 4] = not_a_number;
  for (const int threads : {1, 2, 3, 4}) {
    CHECK_THAT(refusal(column(values), threads), Contains("has NaN in row 2097156 "));
  }
}
