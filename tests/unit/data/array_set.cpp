#include <cfloat>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/data/array_set.h"
#include "core/data/finite.h"
#include "core/data/sampler.h"
#include "tests/support/allocations.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/npy.h"
#include "tests/support/temporary_folder.h"

using namespace shardrun::data;
using namespace shardrun::test;
using namespace shardrun;
using Catch::Matchers::Contains;
using shardrun::files::SteadyFile;

TEST_CASE("rows of features and labels are gathered and converted", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<std::uint8_t>("|u1", "(4, 1, 2)", {0, 1, 10, 11, 20, 21, 30, 31}));
  write_file(folder / "y.npy", npy_file<std::int64_t>("<i8", "(4,)", {5, 6, 7, 8}));

  const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 0.75);
  const std::vector<std::int64_t> rows = {3, 0};
  std::vector<float> features(4);
  std::vector<std::int32_t> labels(2);
  set.fill_features(rows, features);
  set.fill_labels(rows, 9, labels);

  CHECK(set.rows() == 4);
  CHECK(set.training_rows() == 3);
  CHECK(set.features() == 2);
  CHECK(set.has_labels());
  CHECK(set.outputs() == 0);
  CHECK(features == std::vector<float>{30, 31, 0, 1});
  CHECK(labels == std::vector<std::int32_t>{8, 5});
}

TEST_CASE("rows of float targets are gathered", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2,)", {1, 2}));
  write_file(folder / "y.npy", npy_file<double>("<f8", "(2, 2)", {0.5, 1.5, 2.5, 3.5}));
  write_file(folder / "y1.npy", npy_file<double>("<f8", "(2,)", {0.5, 1.5}));

  const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0);
  std::vector<float> targets(2);
  set.fill_targets(std::vector<std::int64_t>{1}, targets);

  CHECK(set.features() == 1);
  CHECK_FALSE(set.has_labels());
  CHECK(set.outputs() == 2);
  CHECK(targets == std::vector<float>{2.5F, 3.5F});
  CHECK(ArraySet(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y1.npy"), 1.0).outputs() == 1);
}

TEST_CASE("a set without y has features alone", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2,)", {1, 2}));
  const ArraySet set(SteadyFile(folder / "x.npy"), {}, 1.0);
  std::vector<float> targets(1);
  std::vector<std::int32_t> labels(1);
  const std::vector<std::int64_t> rows = {0};

  CHECK_FALSE(set.has_labels());
  CHECK_THAT(error_of([&] { set.fill_targets(rows, targets); }), Contains("no targets"));
  CHECK_THAT(error_of([&] { set.fill_labels(rows, 9, labels); }), Contains("do not fill"));
}

TEST_CASE("training samples are a permutation of the training rows", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(5,)", {0, 1, 2, 3, 4}));
  const ArraySet set(SteadyFile(folder / "x.npy"), {}, 0.8);
  std::vector<std::int64_t> rows(3);

  training_samples(set, 11, 6, rows);

  CHECK(rows ==
        std::vector<std::int64_t>{permuted_sample(11, 6, 4), permuted_sample(11, 7, 4), permuted_sample(11, 8, 4)});
}

TEST_CASE("arrays that do not fit together are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2,)", {1, 2}));
  write_file(folder / "short.npy", npy_file<std::int32_t>("<i4", "(1,)", {1}));
  write_file(folder / "wide.npy", npy_file<std::int32_t>("<i4", "(2, 2)", {1, 2, 3, 4}));
  write_file(folder / "deep.npy", npy_file<float>("<f4", "(2, 1, 1)", {1, 2}));
  write_file(folder / "none.npy", npy_file<float>("<f4", "(0, 3)", {}));
  write_file(folder / "scalar.npy", npy_file<float>("<f4", "()", {1}));
  const auto error = [&](const char* x, const char* y) {
    return error_of([&] { ArraySet(SteadyFile(folder / x), SteadyFile(folder / y), 1.0); });
  };

  CHECK_THAT(error("x.npy", "short.npy"), Contains("x.npy' has 2 rows and") && Contains("short.npy' has 1"));
  CHECK_THAT(error("x.npy", "wide.npy"), Contains("wide.npy' is int32 of shape (2, 2): expected integer labels"));
  CHECK_THAT(error("x.npy", "deep.npy"), Contains("deep.npy' is float32 of shape (2, 1, 1)"));
  CHECK_THAT(error("none.npy", "x.npy"), Contains("has shape (0, 3): expected at least one row"));
  CHECK_THAT(error("scalar.npy", "x.npy"), Contains("has shape (): expected at least one row"));
}

TEST_CASE("a label outside the classes is named with its row when a batch is filled", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(3,)", {1, 2, 3}));
  write_file(folder / "y.npy", npy_file<std::int64_t>("<i8", "(3,)", {0, 4, -1}));
  const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0);
  std::vector<std::int32_t> labels(2);
  const auto fill = [&](std::vector<std::int64_t> rows, std::int64_t classes) {
    return error_of([&] { set.fill_labels(rows, classes, labels); });
  };

  CHECK(fill({1, 0}, 5) == "nothing");
  CHECK(labels == std::vector<std::int32_t>{4, 0});
  CHECK_THAT(fill({0, 1}, 4), Contains("the label of row 1 (counted from 0) is 4: the model has classes 0 to 3"));
  CHECK_THAT(fill({0, 2}, 5), Contains("the label of row 2 (counted from 0) is -1"));
  CHECK_THAT(error_of([&] { (void)set.classes(); }), Contains("the label of row 2 (counted from 0) is -1"));
  write_file(folder / "y.npy", npy_file<std::int64_t>("<i8", "(3,)", {0, 4, 2}));
  CHECK(ArraySet(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0).classes() == 5);
}

TEST_CASE("a label beyond 32 bits is named with its row and its value", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2,)", {1, 2}));
  const auto error = [&](const std::string& labels) {
    write_file(folder / "y.npy", labels);
    const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0);
    return error_of([&] { (void)set.classes(); });
  };
  CHECK_THAT(error(npy_file<std::int64_t>("<i8", "(2,)", {0, (std::int64_t{1} << 32U) + 1})),
             Contains("the label of row 1 (counted from 0) is 4294967297: labels count classes from 0"));
  CHECK_THAT(error(npy_file<std::uint64_t>("<u8", "(2,)", {UINT64_MAX, 0})),
             Contains("the label of row 0 (counted from 0) is 18446744073709551615: labels count classes from 0"));
  CHECK_THAT(error(npy_file<std::uint32_t>("<u4", "(2,)", {UINT32_MAX, 0})), Contains("is 4294967295: labels"));
  CHECK(error(npy_file<std::uint64_t>("<u8", "(2,)", {INT32_MAX - 1, 0})) == "nothing");
}

TEST_CASE("rows that follow each other are read in the same order as others", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(5,)", {10, 11, 12, 13, 14}));
  write_file(folder / "y.npy", npy_file<std::int8_t>("|i1", "(5,)", {0, 1, 2, 3, 4}));
  const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0);
  const std::vector<std::int64_t> rows = {4, 1, 2, 3, 0, 1};
  std::vector<float> features(6);
  std::vector<std::int32_t> labels(6);

  set.fill_features(rows, features);
  set.fill_labels(rows, 5, labels);

  CHECK(features == std::vector<float>{14, 11, 12, 13, 10, 11});
  CHECK(labels == std::vector<std::int32_t>{4, 1, 2, 3, 0, 1});
}

TEST_CASE("rows that do not exist and outputs of another size are refused", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2, 2)", {1, 2, 3, 4}));
  const ArraySet set(SteadyFile(folder / "x.npy"), {}, 1.0);
  std::vector<float> two(2);

  CHECK_THAT(error_of([&] { set.fill_features(std::vector<std::int64_t>{2}, two); }), Contains("row 2 of a set of 2"));
  CHECK_THAT(error_of([&] { set.fill_features(std::vector<std::int64_t>{-1}, two); }),
             Contains("row -1 of a set of 2"));
  CHECK_THAT(error_of([&] {
               set.fill_features(std::vector<std::int64_t>{0, 1}, two);
             }),
             Contains("2 rows of 2 numbers do not fill 2"));
}

TEST_CASE("filling a batch from arrays allocates nothing", "[data]") {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", npy_file<float>("<f4", "(2, 2)", {1, 2, 3, 4}));
  write_file(folder / "y.npy", npy_file<std::int32_t>("<i4", "(2,)", {0, 1}));
  const ArraySet set(SteadyFile(folder / "x.npy"), SteadyFile(folder / "y.npy"), 1.0);
  std::vector<std::int64_t> rows(2);
  std::vector<float> features(4);
  std::vector<std::int32_t> labels(2);
  const std::uint64_t before = allocations();

  training_samples(set, 1, 0, rows);
  set.fill_features(rows, features);
  set.fill_labels(rows, 9, labels);

  CHECK(allocations() == before);
}

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinity = std::numeric_limits<float>::infinity();

std::string refusal(const std::string& file, int threads = 1) {
  const TemporaryFolder folder;
  write_file(folder / "x.npy", file);
  return error_of([&] { data::require_finite(data::NpyArray(files::SteadyFile(folder / "x.npy")), threads); });
}

/// A .npy file with a column of these values.
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

TEST_CASE("a double beyond the range of float32 is named too", "[data]") {
  CHECK_THAT(refusal(npy_file<double>("<f8", "(2, 1)", {1, 1e300})),
             Contains("has 1e+300, which float32 cannot hold in row 1, column 0"));
  CHECK_THAT(refusal(npy_file<double>("<f8", "(1,)", {std::nan("")})), Contains("has NaN in row 0"));
}

TEST_CASE("the first value that is not finite is named with any number of threads", "[data]") {
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
