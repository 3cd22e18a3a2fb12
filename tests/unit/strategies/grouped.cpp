// Heads of queries that share heads of keys and values, over numbers of ranks that divide neither: a rank has the heads
// of keys and values that its queries read, several ranks may have one, and the first of them updates it.

#include <set>
#include <utility>

#include "core/checkpoint/contents.h"
#include "tests/support/catch.h"
#include "tests/support/depth.h"
#include "tests/unit/strategies/agreement.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

VerifyCase llama_case(const char* heads, const char* kv_heads, const char* layers, const char* with = "false") {
  const workload::OptimizerSettings adamw{.weight_decay = 0.1, .clip = 0.5};
  return VerifyCase(training_case(
      std::string("llama with heads ") + heads + "/" + kv_heads, "llama",
      {{"layers", layers},
       {"heads", heads},
       {"kv_heads", kv_heads},
       {"head_dim", "2"},
       {"width", "5"},
       {"hidden", "7"},
       {"context", "4"},
       {"vocab", "11"},
       {"qkv_bias", with},
       {"qk_norm", with}},
      {.vocab = 11}, {.batch = 5, .microbatches = 2, .eval_rows = 3, .eval_samples = 4, .optimizer = adamw}));
}

Choice combined(std::vector<plan::MeshAxis> mesh, std::int64_t zero) {
  Choice choice{"3d", std::move(mesh), {{"zero", zero}}};
  add_schedule(choice.options, "1f1b");
  return choice;
}

using Intervals = std::vector<std::pair<std::int64_t, std::int64_t>>;

/// The indices of dimension 0 of a state that each rank has.
Intervals held(const partition::Partition& partition, const graph::Graph& graph, const std::string& name) {
  for (const graph::StateId s : graph.states.ids()) {
    if (graph.states[s].name != name) {
      continue;
    }
    Intervals intervals;
    const mesh::Mesh& mesh = partition.placements.mesh;
    for (std::int64_t rank = 0; rank < mesh.ranks(); ++rank) {
      const mesh::Box box = mesh::box_of(graph.states[s].type.shape, partition.placements.states[s], mesh,
                                         mesh::coordinates_of(mesh, rank));
      intervals.emplace_back(box.origin[0], box.origin[0] + box.shape[0]);
    }
    return intervals;
  }
  FAIL("no state " << name);
  return {};
}

}  // namespace

TEST_CASE("a rank holds the heads of keys that its query heads read", "[strategies]") {
  const VerifyCase nine = llama_case("9", "3", "1");
  const partition::Partition four = split_by(nine.model, {"tp", ranks(4)});
  const auto of = [&](const std::string& name) { return held(four, nine.model.graph, name); };
  CHECK(of("layer.0/attention/query/weights") == Intervals{{0, 3}, {3, 5}, {5, 7}, {7, 9}});
  CHECK(of("layer.0/attention/key/weights") == Intervals{{0, 1}, {1, 2}, {1, 3}, {2, 3}});
  CHECK(of("layer.0/attention/output/weights") == Intervals{{0, 5}, {0, 5}, {0, 5}, {0, 5}});
  CHECK(of("gradients/layer.0/attention/key/weights") == Intervals{{0, 1}, {1, 2}, {2, 3}, {3, 3}});
  const partition::Partition three = split_by(nine.model, {"tp", ranks(3)});
  CHECK(held(three, nine.model.graph, "layer.0/attention/value/weights") == Intervals{{0, 1}, {1, 2}, {2, 3}});
  const VerifyCase fourteen = llama_case("14", "2", "1");
  const partition::Partition five = split_by(fourteen.model, {"tp", ranks(5)});
  CHECK(held(five, fourteen.model.graph, "layer.0/attention/value/weights") ==
        Intervals{{0, 1}, {0, 1}, {0, 2}, {1, 2}, {1, 2}});
}

TEST_CASE("a checkpoint has each element once of heads of keys that several ranks have", "[strategies]") {
  const VerifyCase nine = llama_case("9", "3", "1");
  for (const Choice& choice : {Choice{"tp", ranks(4)}, combined({{"data", 2}, {"model", 4}}, 3)}) {
    const partition::Partition split = split_by(nine.model, choice);
    for (const checkpoint::HeldTensor& held :
         checkpoint::held_tensors(nine.model.graph, split, device::Device::find("cpu"))) {
      std::set<std::int64_t> elements;
      std::int64_t written = 0;
      for (const checkpoint::HeldTensor::Part& part : held.parts) {
        written += part.box.elements();
        for (std::int64_t i = 0; i < part.box.elements(); ++i) {
          elements.insert(part.box.index_in_whole(held.saved.tensor.shape, i));
        }
      }
      INFO(held.saved.tensor.name);
      CHECK(written == graph::element_count(held.saved.tensor.shape));
      CHECK(static_cast<std::int64_t>(elements.size()) == written);
    }
  }
}

TEST_CASE("query heads over any number of ranks agree with the reference", "[strategies]") {
  const VerifyCase nine = llama_case("9", "3", "1", "true");
  for (const std::uint32_t number : {2U, 3U, 4U, 9U}) {
    check_agrees(nine, {"tp", ranks(number)});
  }
  check_agrees(nine, {"tp", ranks(4), {{"sequence", true}}});
  const VerifyCase fourteen = llama_case("14", "2", "1");
  for (const std::uint32_t number : {2U, 4U, 5U, 7U}) {
    check_agrees(fourteen, {"tp", ranks(number)});
  }
  check_agrees(llama_case("5", "1", "1"), {"tp", ranks(3)});
}

TEST_CASE("query heads over any number of ranks agree with the reference under zero and pipelines", "[strategies]") {
  const VerifyCase nine = llama_case("9", "3", "2");
  for (std::int64_t zero = 0; zero <= 3; ++zero) {
    check_agrees(nine, combined({{"data", 2}, {"model", 2}}, zero));
  }
  check_agrees(nine, combined({{"data", 2}, {"model", 4}}, 3));
  check_agrees(nine, combined({{"data", 2}, {"model", 2}, {"pipe", 2}}, 1));
  check_agrees(nine, combined({{"model", 4}, {"pipe", 2}}, 0));
}
