#include "core/mesh/rows.h"

#include <map>
#include <random>

#include "tests/support/catch.h"

using namespace shardrun;
using mesh::Box;
using mesh::Interval;
using mesh::Row;

TEST_CASE("rows are as long as the part's shape allows", "[mesh]") {
  CHECK(mesh::rows_of({4, 3}, {{1, 0}, {2, 3}, {}}) == std::vector<Row>{{3, 0, 6}});
  CHECK(mesh::rows_of({4, 3}, {{1, 1}, {2, 2}, {}}) == std::vector<Row>{{4, 0, 2}, {7, 2, 2}});
  CHECK(mesh::rows_of({2, 3, 4}, {{0, 1, 0}, {2, 2, 4}, {}}) == std::vector<Row>{{4, 0, 8}, {16, 8, 8}});
  CHECK(mesh::rows_of({4, 3}, {{0, 1}, {4, 2}, Interval{1, 5}}) == std::vector<Row>{{2, 0, 1}, {4, 1, 2}, {7, 3, 1}});
  CHECK(mesh::rows_of({}, {{}, {}, {}}) == std::vector<Row>{{0, 0, 1}});
  CHECK(mesh::rows_of({4, 3}, {{2, 0}, {0, 3}, {}}).empty());
}

TEST_CASE("the common elements of two parts equal an element-by-element search", "[mesh]") {
  std::mt19937 random(7);
  const std::vector<std::int64_t> whole = {4, 3, 5};
  const auto some_part = [&] {
    Box box{.origin = {}, .shape = {}, .run = {}};
    for (const std::int64_t size : whole) {
      box.origin.push_back(static_cast<std::int64_t>(random()) % size);
      box.shape.push_back(1 + static_cast<std::int64_t>(random()) % (size - box.origin.back()));
    }
    if (random() % 2 == 0) {
      const std::int64_t begin = static_cast<std::int64_t>(random()) % box.elements();
      box.run = {begin, begin + 1 + static_cast<std::int64_t>(random()) % (box.elements() - begin)};
    }
    return box;
  };
  for (int i = 0; i < 300; ++i) {
    const Box first = some_part();
    const Box second = some_part();
    std::map<std::int64_t, std::int64_t> in_first;
    for (std::int64_t local = 0; local < first.elements(); ++local) {
      in_first[first.index_in_whole(whole, local)] = local;
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> expected;
    for (std::int64_t local = 0; local < second.elements(); ++local) {
      if (const auto found = in_first.find(second.index_in_whole(whole, local)); found != in_first.end()) {
        expected.emplace_back(found->second, local);
      }
    }
    std::vector<std::pair<std::int64_t, std::int64_t>> found;
    for (const mesh::SharedRow& row : mesh::shared_rows(mesh::rows_of(whole, first), mesh::rows_of(whole, second))) {
      for (std::int64_t j = 0; j < row.count; ++j) {
        found.emplace_back(row.in_first + j, row.in_second + j);
      }
    }
    CHECK(found == expected);
    CHECK((found.empty() || mesh::overlap(first, second)));
  }
}
