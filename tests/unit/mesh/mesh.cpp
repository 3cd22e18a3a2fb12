#include "core/mesh/mesh.h"

#include "tests/support/catch.h"

using namespace shardrun;
using mesh::Coordinates;
using mesh::Mesh;

namespace {

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
  CHECK(mesh::line_through(mesh_2_3_2, 0, 8) == std::vector<std::int64_t>{2, 8});
  CHECK(mesh::line_through(mesh_2_3_2, 1, 8) == std::vector<std::int64_t>{6, 8, 10});
  CHECK(mesh::line_through(mesh_2_3_2, 2, 8) == std::vector<std::int64_t>{8, 9});
}

TEST_CASE("a mesh without axes has one rank, and unknown axes are not found", "[mesh]") {
  CHECK(Mesh{}.ranks() == 1);
  CHECK(mesh::coordinates_of(Mesh{}, 0).empty());
  CHECK(mesh::rank_at(Mesh{}, {}) == 0);
  CHECK(mesh_2_3_2.find("model") == 1);
  CHECK(mesh_2_3_2.find("expert") == -1);
}
