#include <algorithm>

#include "core/mesh/mesh.h"
#include "core/mesh/placement.h"
#include "tests/support/catch.h"

using namespace shardrun;
using mesh::Box;
using mesh::Coordinates;
using mesh::Interval;
using mesh::Mesh;
using mesh::Placement;

namespace {

constexpr mesh::AxisId data(0);
constexpr mesh::AxisId model(1);
const Mesh mesh_2_3_2{{{"data", 2}, {"model", 3}, {"pipe", 2}}};

}  // namespace

TEST_CASE("the coordinate along a mesh's last axis changes fastest", "[mesh]") {
  CHECK(mesh_2_3_2.ranks() == 12);
  CHECK(mesh::coordinates_of(mesh_2_3_2, 0) == Coordinates{0, 0, 0});
  CHECK(mesh::coordinates_of(mesh_2_3_2, 1) == Coordinates{0, 0, 1});
  CHECK(mesh::coordinates_of(mesh_2_3_2, 2) == Coordinates{0, 1, 0});
  CHECK(mesh::coordinates_of(mesh_2_3_2, 7) == Coordinates{1, 0, 1});
  CHECK(mesh::coordinates_of(mesh_2_3_2, 11) == Coordinates{1, 2, 1});
  for (std::int64_t rank = 0; rank < 12; ++rank) {
    CHECK(mesh::rank_at(mesh_2_3_2, mesh::coordinates_of(mesh_2_3_2, rank)) == rank);
  }
}

TEST_CASE("a group has the ranks that differ along its axis alone, in order", "[mesh]") {
  CHECK(mesh::line_through(mesh_2_3_2, data, 8) == std::vector<std::int64_t>{2, 8});
  CHECK(mesh::line_through(mesh_2_3_2, model, 8) == std::vector<std::int64_t>{6, 8, 10});
  CHECK(mesh::line_through(mesh_2_3_2, mesh_2_3_2.find("pipe"), 8) == std::vector<std::int64_t>{8, 9});
}

TEST_CASE("an order says which rank is at each place", "[mesh]") {
  Mesh mesh{{{"data", 2}, {"model", 2}}};
  mesh.set_order({3, 0, 2, 1});
  CHECK(mesh::coordinates_of(mesh, 3) == Coordinates{0, 0});
  CHECK(mesh::coordinates_of(mesh, 0) == Coordinates{0, 1});
  CHECK(mesh::coordinates_of(mesh, 2) == Coordinates{1, 0});
  CHECK(mesh::coordinates_of(mesh, 1) == Coordinates{1, 1});
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    CHECK(mesh::rank_at(mesh, mesh::coordinates_of(mesh, rank)) == rank);
  }
  CHECK(mesh::line_through(mesh, data, 0) == std::vector<std::int64_t>{0, 1});
  CHECK(mesh::line_through(mesh, model, 1) == std::vector<std::int64_t>{2, 1});
}

TEST_CASE("a mesh without axes has one rank, and unknown axes are not found", "[mesh]") {
  CHECK(Mesh{}.ranks() == 1);
  CHECK(mesh::coordinates_of(Mesh{}, 0).empty());
  CHECK(mesh::rank_at(Mesh{}, {}) == 0);
  CHECK(mesh_2_3_2.find("model") == model);
  CHECK_FALSE(mesh_2_3_2.find("expert").exists());
}

namespace {

const Mesh mesh_2_3{{{"data", 2}, {"model", 3}}};

std::vector<Interval> parts(Interval whole, std::int64_t count) {
  std::vector<Interval> all;
  for (std::int64_t i = 0; i < count; ++i) {
    all.push_back(mesh::part_of(whole, count, i));
  }
  return all;
}

}  // namespace

TEST_CASE("parts differ by at most one, and the larger come first", "[mesh]") {
  CHECK(parts({0, 8}, 4) == std::vector<Interval>{{0, 2}, {2, 4}, {4, 6}, {6, 8}});
  CHECK(parts({0, 10}, 4) == std::vector<Interval>{{0, 3}, {3, 6}, {6, 8}, {8, 10}});
  CHECK(parts({5, 12}, 3) == std::vector<Interval>{{5, 8}, {8, 10}, {10, 12}});
  CHECK(parts({0, 2}, 3) == std::vector<Interval>{{0, 1}, {1, 2}, {2, 2}});
  CHECK(parts({3, 3}, 2) == std::vector<Interval>{{3, 3}, {3, 3}});
  CHECK(parts({0, 7}, 1) == std::vector<Interval>{{0, 7}});
}

TEST_CASE("parts of any interval are consecutive and cover it", "[mesh]") {
  for (std::int64_t size = 0; size < 20; ++size) {
    for (std::int64_t count = 1; count < 9; ++count) {
      std::int64_t end = 3;
      for (const Interval& part : parts({3, 3 + size}, count)) {
        CHECK(part.begin == end);
        CHECK((part.size() == size / count || part.size() == size / count + 1));
        end = part.end;
      }
      CHECK(end == 3 + size);
    }
  }
}

TEST_CASE("splits of one dimension nest, major to minor", "[mesh]") {
  // 7 over data: 4 and 3; those over model: 2, 1, 1 and 1, 1, 1.
  CHECK(mesh::shard_of(7, {data, model}, mesh_2_3, {0, 0}) == Interval{0, 2});
  CHECK(mesh::shard_of(7, {data, model}, mesh_2_3, {0, 2}) == Interval{3, 4});
  CHECK(mesh::shard_of(7, {data, model}, mesh_2_3, {1, 0}) == Interval{4, 5});
  // 7 over model: 3, 2 and 2; those over data: 2, 1 and 1, 1 and 1, 1.
  CHECK(mesh::shard_of(7, {model, data}, mesh_2_3, {1, 0}) == Interval{2, 3});
  CHECK(mesh::shard_of(7, {model, data}, mesh_2_3, {0, 2}) == Interval{5, 6});
  CHECK(mesh::shard_of(7, {}, mesh_2_3, {1, 2}) == Interval{0, 7});
}

TEST_CASE("a box has the rank's part of each dimension", "[mesh]") {
  const Placement placement{.dims = {{}, {model}, {data}}};
  CHECK(mesh::box_of({2, 7, 5}, placement, mesh_2_3, {0, 0}) == Box{{0, 0, 0}, {2, 3, 3}});
  CHECK(mesh::box_of({2, 7, 5}, placement, mesh_2_3, {1, 2}) == Box{{0, 5, 3}, {2, 2, 2}});
  CHECK(mesh::box_of({2, 7, 5}, placement, mesh_2_3, {1, 2}).elements() == 8);
  CHECK(mesh::box_of({}, mesh::replicated(0), mesh_2_3, {1, 2}).elements() == 1);
  CHECK(mesh::box_of({1, 2}, {.dims = {{model}, {}}}, mesh_2_3, {0, 2}) == Box{{1, 0}, {0, 2}});
}

TEST_CASE("a run has the rank's elements of its part of the dimensions", "[mesh]") {
  const Placement flat{.dims = {{}, {}}, .flat = {data}};
  CHECK(mesh::box_of({3, 5}, flat, mesh_2_3, {0, 2}) == Box{{0, 0}, {3, 5}, Interval{0, 8}});
  CHECK(mesh::box_of({3, 5}, flat, mesh_2_3, {1, 2}) == Box{{0, 0}, {3, 5}, Interval{8, 15}});
  const Placement both{.dims = {{}, {data}}, .flat = {model}};  // of 3 rows and 2 columns
  const Box box = mesh::box_of({3, 5}, both, mesh_2_3, {1, 1});
  CHECK(box == Box{{0, 3}, {3, 2}, Interval{2, 4}});
  CHECK(box.elements() == 2);
  CHECK(box.part_shape() == std::vector<std::int64_t>{2});
  CHECK(box.index_in_whole({3, 5}, 0) == 8);
  CHECK(box.index_in_whole({3, 5}, 1) == 9);
  CHECK(box.contains({1, 3}));
  CHECK(box.contains({1, 4}));
  CHECK_FALSE(box.contains({1, 2}));
  CHECK_FALSE(box.contains({0, 4}));
  CHECK_FALSE(box.contains({2, 3}));
}

TEST_CASE("runs of any tensor have each element once, and differ by at most one", "[mesh]") {
  for (std::int64_t rows = 0; rows < 9; ++rows) {
    for (const Placement& placement :
         {Placement{.dims = {{}, {}}, .flat = {data, model}}, Placement{.dims = {{data}, {}}, .flat = {model}},
          Placement{.dims = {{}, {model}}, .flat = {data}}}) {
      const std::vector<std::int64_t> shape = {rows, 5};
      std::vector<int> found(static_cast<std::size_t>(rows * 5), 0);
      for (std::int64_t rank = 0; rank < mesh_2_3.ranks(); ++rank) {
        const Box box = mesh::box_of(shape, placement, mesh_2_3, mesh::coordinates_of(mesh_2_3, rank));
        for (std::int64_t i = 0; i < box.elements(); ++i) {
          const std::int64_t at = box.index_in_whole(shape, i);
          ++found[static_cast<std::size_t>(at)];
          CHECK(box.contains({at / 5, at % 5}));
        }
        const std::int64_t left = mesh::Box{box.origin, box.shape}.elements();
        const std::int64_t parts = placement.flat.size() == 2 ? 6 : mesh_2_3.size(placement.flat[0]);
        CHECK((box.elements() == left / parts || box.elements() == left / parts + 1));
      }
      CHECK(std::all_of(found.begin(), found.end(), [](int times) { return times == 1; }));
    }
  }
}

TEST_CASE("placements know their axes and are drawn by their names", "[mesh]") {
  const Placement flat{.dims = {{model}, {}}, .flat = {data}};
  CHECK(flat.splits(data));
  CHECK(flat.splits(model));
  CHECK(mesh::to_string(flat, mesh_2_3) == "[model | -] flat data");
  const Placement placement{.dims = {{data, model}, {}}, .partial = {}};
  CHECK(placement.splits(data));
  CHECK(placement.splits(model));
  CHECK_FALSE(mesh::replicated(2).splits(data));
  CHECK(mesh::to_string(placement, mesh_2_3) == "[data,model | -]");
  const Placement partial{.dims = {{}}, .partial = {{model, Reduction::max}}};
  CHECK(partial.is_partial(model));
  CHECK_FALSE(partial.is_partial(data));
  CHECK(mesh::to_string(partial, mesh_2_3) == "[-] partial max model");
  CHECK(mesh::to_string(mesh::replicated(0), mesh_2_3) == "replicated");
}

TEST_CASE("own() of halos leaves each index to one rank", "[mesh]") {
  constexpr std::int64_t size = 7;
  for (const Window window : {Window{.first = -1, .last = 1}, Window{.first = -2, .last = 0}, Window{.last = 3}}) {
    const Placement placement{.dims = {{model}}, .halos = {{.dim = 0, .window = window, .size = size}}};
    std::vector<int> found(size, 0);
    for (std::int64_t rank = 0; rank < mesh_2_3.ranks(); ++rank) {
      const Coordinates at = mesh::coordinates_of(mesh_2_3, rank);
      const Interval part = mesh::interval_of(size, placement.own(), 0, mesh_2_3, at);
      for (std::int64_t i = part.begin; i < part.end && at[data] == 0; ++i) {
        ++found[static_cast<std::size_t>(i)];
      }
    }
    CHECK(std::all_of(found.begin(), found.end(), [](int times) { return times == 1; }));
  }
}
