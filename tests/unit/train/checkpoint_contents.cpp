// Which rank writes which part of which state.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/rank_file.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

checkpoint::Contents contents_in(const compile::Compiled& compiled) {
  return checkpoint::contents_of(checkpoint::held_tensors(compiled.graph, compiled.partition, *compiled.device),
                                 compiled.partition.placements.mesh.ranks());
}

/// The number of elements of a tensor that each rank writes. Checks that their pieces make it whole.
std::vector<std::int64_t> written_of(const checkpoint::Contents& contents, const std::string& name) {
  std::vector<std::int64_t> elements;
  std::vector<int> times;
  for (const std::vector<checkpoint::OwnPiece>& pieces : contents.of_ranks) {
    elements.push_back(0);
    for (const checkpoint::OwnPiece& piece : pieces) {
      const checkpoint::StoredTensor& tensor = contents.tensors[piece.tensor].tensor;
      if (tensor.name != name) {
        continue;
      }
      CHECK(piece.box.elements() == piece.elements.size());
      elements.back() += piece.elements.size();
      const mesh::Box whole{std::vector<std::int64_t>(tensor.shape.size(), 0), tensor.shape, {}};
      times.resize(static_cast<std::size_t>(whole.elements()));
      for (std::int64_t i = 0; i < piece.box.elements(); ++i) {
        ++times[static_cast<std::size_t>(piece.box.index_in_whole(tensor.shape, i))];
      }
    }
  }
  CHECK(std::ranges::all_of(times, [](int count) { return count == 1; }));
  return elements;
}

}  // namespace

TEST_CASE("a replica is written by as many ranks as get 64 KiB each, those with the least to write first",
          "[checkpoint]") {
  const TemporaryFolder folder;
  const compile::Compiled compiled =
      compile_ready(text_job_in(folder, {"job.ranks=3", "job.strategy=dp", "model.width=128", "model.layers=1"}));
  const checkpoint::Contents contents = contents_in(compiled);
  REQUIRE(contents.of_ranks.size() == 3);
  std::map<std::string, checkpoint::TensorRole> roles;
  std::vector<std::uint64_t> bytes(3);
  for (const checkpoint::SavedTensor& saved : contents.tensors) {
    roles[saved.tensor.name] = saved.tensor.role;
    const std::vector<std::int64_t> elements = written_of(contents, saved.tensor.name);
    std::int64_t writers = 0;
    for (std::size_t rank = 0; rank < 3; ++rank) {
      bytes[rank] += static_cast<std::uint64_t>(elements[rank]) * 4;
      writers += elements[rank] > 0 ? 1 : 0;
    }
    const std::uint64_t all = *checkpoint::tensor_bytes({"", saved.tensor.dtype, saved.tensor.shape});
    CHECK(writers == std::clamp<std::int64_t>(static_cast<std::int64_t>(all >> 16U), 1, 3));
  }
  CHECK(roles.at("layer.0/mlp/up/weights") == checkpoint::TensorRole::parameter);
  CHECK(roles.at("first_moment/layer.0/mlp/up/weights") == checkpoint::TensorRole::optimizer);
  CHECK(roles.contains("loss") == false);
  CHECK(written_of(contents, "layer.0/mlp/up/weights") == std::vector<std::int64_t>{21846, 21845, 21845});
  const auto [least, most] = std::ranges::minmax(bytes);
  CHECK(most - least < (64U << 10U));
}

TEST_CASE("in mixed precision a checkpoint has the float32 master as the parameter", "[checkpoint]") {
  const TemporaryFolder folder;
  const checkpoint::Contents contents =
      contents_in(compile_ready(text_job_in(folder, {"job.ranks=2", "job.strategy=dp", "train.precision=mixed"})));
  int parameters = 0;
  for (const checkpoint::SavedTensor& saved : contents.tensors) {
    CHECK(saved.tensor.dtype == checkpoint::DType::f32);
    CHECK(!saved.tensor.name.starts_with("master"));
    parameters += saved.tensor.role == checkpoint::TensorRole::parameter ? 1 : 0;
    static_cast<void>(written_of(contents, saved.tensor.name));
  }
  CHECK(static_cast<std::size_t>(parameters) * 3 == contents.tensors.size());
}

TEST_CASE("a state that varies between ranks is saved as a tensor for each rank", "[checkpoint]") {
  const TemporaryFolder folder;
  compile::Compiled compiled = compile_ready(text_job_in(folder, {"job.ranks=2", "job.strategy=dp"}));
  const auto& states = compiled.graph.states;
  const auto ids = states.ids();
  const auto varying = std::find_if(ids.begin(), ids.end(), [&](graph::StateId id) {
    return states[id].name == "first_moment/layer.0/mlp/up/weights";
  });
  REQUIRE(varying != ids.end());
  compiled.partition.placements.states[*varying].varying = {mesh::AxisId{0}};
  const checkpoint::Contents contents = contents_in(compiled);
  CHECK(written_of(contents, "first_moment/layer.0/mlp/up/weights") == std::vector<std::int64_t>{0, 0});
  CHECK(written_of(contents, "first_moment/layer.0/mlp/up/weights@data=0") == std::vector<std::int64_t>{1024, 0});
  CHECK(written_of(contents, "first_moment/layer.0/mlp/up/weights@data=1") == std::vector<std::int64_t>{0, 1024});
}
