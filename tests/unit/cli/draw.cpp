#include "core/cli/draw.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include "tests/support/catch.h"

using namespace shardrun;
using mesh::Mesh;
using mesh::Placement;
using mesh::Shard;

namespace {

constexpr mesh::AxisId data(0);
constexpr mesh::AxisId model(1);
const Mesh mesh_2_2{{{"data", 2}, {"model", 2}}};
const Mesh mesh_2_3{{{"data", 2}, {"model", 3}}};

/// The drawing after a line break, because the expected drawings below begin with one.
std::string drawn(const std::vector<std::int64_t>& shape, const Placement& placement, const Mesh& mesh,
                  const std::vector<std::string>& axes, std::size_t width = 80) {
  return "\n" + cli::draw(mesh::shards_of(shape, placement, mesh), axes, width);
}

std::size_t widest_line(const std::string& text) {
  std::istringstream lines(text);
  std::size_t widest = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto columns = std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; });
    widest = std::max(widest, static_cast<std::size_t>(columns));
  }
  return widest;
}

}  // namespace

TEST_CASE("parts are listed as they lie in the tensor, with all ranks that have them", "[mesh]") {
  CHECK(mesh::shards_of({4, 3}, {.dims = {{}, {model}}}, mesh_2_2) ==
        std::vector<Shard>{{{{0, 0}, {4, 2}}, {0, 2}}, {{{0, 2}, {4, 1}}, {1, 3}}});
  CHECK(mesh::shards_of({}, mesh::replicated(0), mesh_2_2) == std::vector<Shard>{{{{}, {}}, {0, 1, 2, 3}}});
}

TEST_CASE("the parts of any placement have each element once and each rank once", "[mesh]") {
  for (std::int64_t rows = 0; rows < 6; ++rows) {
    for (const Placement& placement :
         {Placement{{{}, {}}}, Placement{{{data}, {model}}}, Placement{{{model, data}, {}}}}) {
      std::int64_t elements = 0;
      std::vector<std::int64_t> ranks;
      for (const Shard& shard : mesh::shards_of({rows, 5}, placement, mesh_2_3)) {
        elements += shard.box.elements();
        ranks.insert(ranks.end(), shard.ranks.begin(), shard.ranks.end());
      }
      std::sort(ranks.begin(), ranks.end());
      CHECK(elements == rows * 5);
      CHECK(ranks == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});
    }
  }
}

TEST_CASE("ranks are written as ranges", "[mesh]") {
  std::vector<std::int64_t> all(64);
  std::iota(all.begin(), all.end(), 0);
  CHECK(mesh::ranks_text(all) == "0-63");
  CHECK(mesh::ranks_text({}).empty());
  CHECK(mesh::ranks_text({0, 2}) == "0,2");
  CHECK(mesh::ranks_text({0, 1, 2, 3, 8, 9, 11}) == "0-3,8,9,11");
  CHECK(mesh::ranks_text({0, 4, 8, 12, 16, 20}) == "0,4,…,20");
  CHECK(mesh::ranks_text({0, 4, 8, 12, 16, 21}) == "0,4,8,12,16,21");
  CHECK(mesh::ranges_text({{0, 4}, {16, 4}}) == "[0:16, 4:8]");
  CHECK(mesh::ranges_text({}) == "[]");
  CHECK(mesh::ranges_text({{0, 4}, {16, 4}, mesh::Interval{5, 12}}) == "elements 5:12 of [0:16, 4:8]");
}

TEST_CASE("replicas stand together in a box", "[mesh]") {
  CHECK(drawn({16, 48}, {.dims = {{}, {model}}}, mesh_2_2, {"embed", "mlp"}) == R"(
embed ↓  mlp →
                0:24                    24:48
     ┌────────────────────────┬────────────────────────┐
     │                        │                        │
0:16 │          0,2           │          1,3           │
     │                        │                        │
     └────────────────────────┴────────────────────────┘
)");
}

TEST_CASE("uneven parts of two dimensions are drawn to scale", "[mesh]") {
  CHECK(drawn({7, 5}, {.dims = {{data}, {model}}}, mesh_2_3, {"heads", "embed"}) == R"(
heads ↓  embed →
             0:2                 2:4            4:5
    ┌───────────────────┬───────────────────┬─────────┐
    │                   │                   │         │
0:4 │         0         │         1         │    2    │
    │                   │                   │         │
    ├───────────────────┼───────────────────┼─────────┤
    │                   │                   │         │
4:7 │         3         │         4         │    5    │
    │                   │                   │         │
    └───────────────────┴───────────────────┴─────────┘
)");
}

TEST_CASE("one dimension is a row", "[mesh]") {
  CHECK(drawn({10}, {.dims = {{model}}}, mesh_2_3, {"embed"}) == R"(
embed →
         0:4              4:7            7:10
┌───────────────────┬──────────────┬──────────────┐
│                   │              │              │
│        0,3        │     1,4      │     2,5      │
│                   │              │              │
└───────────────────┴──────────────┴──────────────┘
)");
}

TEST_CASE("a flat placement is drawn as a row, or within the boxes that it splits", "[mesh]") {
  CHECK(drawn({3, 5}, {.dims = {{}, {}}, .flat = {data}}, mesh_2_2, {"embed", "mlp"}) == R"(
elements of embed × mlp →
            0:8                     8:15
┌─────────────────────────┬──────────────────────┐
│                         │                      │
│           0,1           │         2,3          │
│                         │                      │
└─────────────────────────┴──────────────────────┘
)");
  CHECK(drawn({3, 4}, {.dims = {{}, {model}}, .flat = {data}}, mesh_2_2, {"embed", "mlp"}) == R"(
embed ↓  mlp →
               0:2                      2:4
    ┌────────────────────────┬────────────────────────┐
    │                        │                        │
0:3 │          0,2           │          1,3           │
    │                        │                        │
    └────────────────────────┴────────────────────────┘
not drawn, but split too: the elements of each box in row-major order, among its ranks
)");
}

TEST_CASE("ranks without an element stand in no box", "[mesh]") {
  CHECK(drawn({2, 4}, {.dims = {{model}, {}}}, mesh_2_3, {"heads", "embed"}) == R"(
heads ↓  embed →
                           0:4
    ┌────────────────────────────────────────────────┐
    │                                                │
0:1 │                      0,3                       │
    │                                                │
    ├────────────────────────────────────────────────┤
    │                                                │
1:2 │                      1,4                       │
    │                                                │
    └────────────────────────────────────────────────┘
without any element: ranks 2,5
)");
  CHECK(drawn({0, 4}, {.dims = {{model}, {}}}, mesh_2_3, {"heads", "embed"}) == "\nwithout any element: ranks 0-5\n");
}

TEST_CASE("only the split dimensions of many are drawn", "[mesh]") {
  CHECK(drawn({4, 7, 8, 9}, {.dims = {{}, {model}, {}, {data}}}, mesh_2_2, {"a", "b", "c", "d"}) == R"(
b ↓  d →
                0:5                      5:9
    ┌──────────────────────────┬─────────────────────┐
    │                          │                     │
0:4 │            0             │          2          │
    │                          │                     │
    ├──────────────────────────┼─────────────────────┤
    │                          │                     │
4:7 │            1             │          3          │
    │                          │                     │
    └──────────────────────────┴─────────────────────┘
not drawn, whole in every part: a, c
)");
}

TEST_CASE("a third split dimension is not drawn but named", "[mesh]") {
  const Mesh cube{{{"data", 2}, {"model", 2}, {"pipe", 2}}};
  const mesh::AxisId pipe(2);
  const std::string text = drawn({4, 7, 8}, {.dims = {{data}, {model}, {pipe}}}, cube, {"a", "b", "c"});
  CHECK_THAT(text, Catch::Matchers::Contains("not drawn, but split too: c;"));
  CHECK_THAT(text, Catch::Matchers::Contains("│            4,5            │        6,7         │"));
}

TEST_CASE("a scalar is one box", "[mesh]") {
  CHECK(drawn({}, mesh::replicated(0), mesh_2_2, {}) == R"(
┌────────────────────────────────────────────────┐
│                                                │
│                      0-3                       │
│                                                │
└────────────────────────────────────────────────┘
)");
}

TEST_CASE("a drawing that does not fit loses its middle", "[mesh]") {
  const Mesh line{{{"data", 64}}};
  CHECK(drawn({8, 100}, {.dims = {{}, {data}}}, line, {"a", "b"}, 40) == R"(
a ↓  b →
      0:2   2:4   4:6   …   99:100
    ┌─────┬─────┬─────┬───┬────────┐
    │     │     │     │   │        │
0:8 │  0  │  1  │  2  │ … │   63   │
    │     │     │     │   │        │
    └─────┴─────┴─────┴───┴────────┘
)");
  const std::string down = drawn({100, 8}, {.dims = {{data}, {}}}, line, {"a", "b"});
  CHECK(std::count(down.begin(), down.end(), '\n') < 40);
  CHECK_THAT(down, Catch::Matchers::Contains(" 28:30 │") && Catch::Matchers::Contains("     ⋮ │") &&
                       Catch::Matchers::Contains("99:100 │"));
  CHECK(drawn({8, 100}, {.dims = {{}, {data}}}, line, {"a", "b"}, 8) == "\nits parts cannot be drawn in 8 columns\n");
}

TEST_CASE("no drawing is wider than its limit", "[mesh]") {
  const Mesh grid{{{"data", 8}, {"model", 32}}};
  for (std::size_t width = 40; width < 120; ++width) {
    CHECK(widest_line(drawn({8, 100}, {.dims = {{data}, {model}}}, grid, {"a", "b"}, width)) <= width);
  }
}
