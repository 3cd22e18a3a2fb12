// The programs into which models are lowered: which instructions there are, and where their buffers lie.

#include <algorithm>

#include "core/memory/layout.h"
#include "core/partition/partition.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;
using partition::Buffer;
using partition::BufferId;
using partition::Instruction;
using partition::Program;

namespace {

partition::Programs programs_of(const ModelCase& model, int threads = 1) {
  return partition::programs_of(model.graph, device::Device::find("cpu"), threads);
}

const Buffer& buffer(const Program& program, BufferId id) { return program.buffers[id]; }

std::vector<const Instruction*> writing(const Program& program, std::string_view name) {
  std::vector<const Instruction*> found;
  for (const Instruction& at : program.instructions) {
    for (const BufferId id : at.outputs) {
      if (buffer(program, id).name == name) {
        found.push_back(&at);
      }
    }
  }
  return found;
}

std::int64_t count_of(const Program& program, std::string_view op) {
  return std::count_if(program.instructions.begin(), program.instructions.end(),
                       [&](const Instruction& at) { return at.op->name == op; });
}

/// A buffer or scratch: when it is in use, and where.
struct Place {
  std::string name;
  std::int32_t first;
  std::int32_t last;
  std::uint64_t offset;
  std::uint64_t bytes;
};

std::vector<Place> places(const Program& program, BufferId states) {
  std::vector<Place> all;
  for (const BufferId b : program.buffers.ids()) {
    const Buffer& at = program.buffers[b];
    const auto end = static_cast<std::int32_t>(program.instructions.size());
    all.push_back({at.name, b < states ? 0 : at.first, b < states ? end : at.last, at.offset, at.bytes});
  }
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const auto now = static_cast<std::int32_t>(i);
    all.push_back({"scratch of " + at.name, now, now, at.scratch_offset, at.scratch_bytes});
  }
  return all;
}

}  // namespace

TEST_CASE("the gradients of a transformer are made in their states, without a copy", "[partition]") {
  for (const ModelCase& model : model_cases()) {
    for (const Program& program : programs_of(model).programs) {
      INFO(model.name << ", " << program.function);
      CHECK(count_of(program, "copy") == 0);
    }
  }
}

TEST_CASE("each use of a tied weight adds to its gradient's buffer", "[partition]") {
  const ModelCase model = model_cases().front();
  const partition::Programs programs = programs_of(model);
  const std::vector<const Instruction*> writes = writing(programs.find("micro", 3), "gradients/embedding/tokens");
  REQUIRE(writes.size() == 2);
  CHECK(writes[0]->op->name == "matmul_gradient_weights");
  CHECK(writes[0]->accumulate == partition::Accumulate::after_first);
  CHECK(writes[1]->op->name == "embedding_gradient");
  CHECK(writes[1]->accumulate == partition::Accumulate::always);
}

TEST_CASE("an optimizer step overwrites parameters and moments in place", "[partition]") {
  const partition::Programs programs = programs_of(model_cases().front());
  const Program& update = programs.find("update", 0);
  for (const Instruction& at : update.instructions) {
    if (at.op->name == "adamw") {
      CHECK(std::equal(at.outputs.begin(), at.outputs.end(), at.inputs.begin()));
      CHECK(at.accumulate == partition::Accumulate::never);
    }
  }
  CHECK(count_of(update, "adamw") > 0);
}

TEST_CASE("the gradient of the logits overwrites the logits", "[partition]") {
  const partition::Programs programs = programs_of(model_cases().front());
  for (const Instruction& at : programs.find("micro", 3).instructions) {
    if (at.op->name == "softmax_terms_gradient") {
      CHECK(at.outputs[0] == at.inputs[0]);
    }
  }
}

namespace {

/// The pairs of buffers that are in use at once and overlap: "a and b; ".
std::string overlapping(const std::vector<Place>& all) {
  std::string text;
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const bool at_once = all[a].first <= all[b].last && all[b].first <= all[a].last;
      const bool meet = all[a].offset < all[b].offset + all[b].bytes && all[b].offset < all[a].offset + all[a].bytes;
      text += at_once && meet && all[a].bytes > 0 && all[b].bytes > 0 ? all[a].name + " and " + all[b].name + "; " : "";
    }
  }
  return text;
}

/// The buffers that instruction `i` touches. A transfer touches its buffers from its start until it is waited for.
std::vector<BufferId> touched(const Program& program, std::size_t i) {
  std::vector<BufferId> buffers = program.instructions[i].inputs;
  buffers.insert(buffers.end(), program.instructions[i].outputs.begin(), program.instructions[i].outputs.end());
  for (const partition::TransferId t : program.transfers.ids()) {
    const auto is = [&](const Instruction& at, Instruction::Kind kind) { return at.kind == kind && at.transfer == t; };
    const auto here = program.instructions.begin() + static_cast<std::ptrdiff_t>(i);
    const bool started = std::any_of(program.instructions.begin(), here + 1,
                                     [&](const Instruction& at) { return is(at, Instruction::Kind::start); });
    const bool waited = std::any_of(program.instructions.begin(), here,
                                    [&](const Instruction& at) { return is(at, Instruction::Kind::wait); });
    if (started && !waited) {
      const partition::Transfer& transfer = program.transfers[t];
      buffers.insert(buffers.end(), {transfer.send.buffer, transfer.recv.buffer, transfer.scratch});
    }
  }
  return buffers;
}

void check_layout(const partition::Programs& programs) {
  const BufferId states = partition::buffer_of(programs.states.next());
  for (const Program& program : programs.programs) {
    INFO(program.function << " of " << program.rows << " rows, last " << program.finalizes);
    const std::vector<Place> all = places(program, states);
    CHECK(overlapping(all).empty());
    for (std::size_t a = 0; a < all.size(); ++a) {
      INFO(all[a].name << " @" << all[a].offset);
      // States that are summed in buckets lie in memory without gaps.
      const bool packed = all[a].name == "loss" || all[a].name.starts_with("gradients/");
      CHECK((all[a].offset % memory::alignment == 0 || (packed && programs.mesh.ranks() > 1)));
      CHECK(all[a].offset + all[a].bytes <= programs.arena_bytes);
    }
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      for (const BufferId id : touched(program, i)) {
        const auto now = static_cast<std::int32_t>(i);
        INFO("instruction " << i << ", " << program.instructions[i].name << ", buffer " << id.number());
        CHECK((id < states || (buffer(program, id).first <= now && now <= buffer(program, id).last)));
      }
    }
    CHECK(program.least_bytes <= program.transient_bytes);
  }
}

}  // namespace

TEST_CASE("no two buffers that are in use at once overlap, and each operand is alive", "[partition]") {
  for (const ModelCase& model : model_cases()) {
    INFO(model.name);
    check_layout(programs_of(model, 2));
  }
}

TEST_CASE("no two buffers in use at once overlap on any rank of a split graph, transfers included", "[partition]") {
  const plan::Plan both =
      plan_of({{"data", 2}, {"model", 3}},
              {{"batch", {"data"}}, {"heads", {"model"}}, {"mlp", {"model"}}, {"x", {"model"}}}, 500);
  const plan::Plan sequence = plan_of({{"a", 2}}, {{"seq", {"a"}}, {"features", {"a"}}, {"vocab", {"a"}}}, 1 << 20);
  for (const ModelCase& model : model_cases()) {
    for (const plan::Plan& plan : {data_parallel(2, 500), both, sequence}) {
      const partition::Partition partition = partition::split(model.graph, plan);
      for (const std::int64_t rank : {std::int64_t{0}, plan.ranks() - 1}) {
        INFO(model.name << " on rank " << rank << " of\n" << to_string(plan));
        check_layout(partition::programs_of(model.graph, partition,
                                            {.device = device::Device::find("cpu"),
                                             .threads = 2,
                                             .rank = rank,
                                             .transfer_scratch = [](const partition::Transfer& transfer, std::int64_t) {
                                               return static_cast<std::uint64_t>(transfer.recv.elements);
                                             }}));
      }
    }
  }
}

TEST_CASE("a program has the FLOPs and nodes of its function", "[partition]") {
  for (const ModelCase& model : model_cases()) {
    const partition::Programs programs = programs_of(model);
    for (const graph::Function& function : model.graph.functions) {
      const Program& program = programs.find(function.name, function.rows);
      std::int64_t flops = 0;
      for (const Instruction& at : program.instructions) {
        flops += at.flops;
      }
      CHECK(static_cast<double>(flops) == graph::flops(function));
      CHECK(program.instructions.size() == function.nodes.size());
    }
  }
}

namespace {

ModelCase deep_gpt(graph::Remat remat, const char* bias, const char* dropout) {
  return training_case(
      "", "gpt",
      {{"layers", "4"}, {"heads", "2"}, {"width", "32"}, {"context", "16"}, {"bias", bias}, {"dropout", dropout}},
      {.vocab = 11}, {.batch = 4, .remat = remat});
}

}  // namespace

TEST_CASE("more recomputation takes less memory and more work", "[partition]") {
  for (const auto& [bias, dropout] : {std::pair{"false", "0"}, std::pair{"true", "0.1"}}) {
    std::vector<std::uint64_t> bytes;
    std::vector<double> flops;
    for (const graph::Remat remat : {graph::Remat::none, graph::Remat::selective, graph::Remat::layer}) {
      const ModelCase model = deep_gpt(remat, bias, dropout);
      bytes.push_back(programs_of(model).find("micro", 4).transient_bytes);
      flops.push_back(graph::flops(*model.graph.find("micro", 4)));
    }
    INFO("bias " << bias << ": " << bytes[0] << ", " << bytes[1] << ", " << bytes[2] << " bytes");
    CHECK(bytes[1] < bytes[0]);
    CHECK(bytes[2] < bytes[1]);
    CHECK(flops[1] > flops[0]);
    CHECK(flops[2] > flops[1]);
  }
}

TEST_CASE("a value computed again has the placement of its cut point", "[partition]") {
  const ModelCase model = deep_gpt(graph::Remat::layer, "true", "0.1");
  plan::Plan plan = tensor_parallel(2);
  for (const graph::CutPoint& point : model.graph.cut_points) {
    // Cut points before it are left out. Otherwise what is split there would be split here without being asked for.
    if (point.name.ends_with("/attention_residual")) {
      plan.cut_points.push_back({point.name, {{}, {"model"}, {}}});
    }
  }
  const partition::Partition partition = partition::split(model.graph, plan);
  std::size_t placed = 0;
  for (const partition::SplitFunction& function : partition.sharded.functions) {
    for (const partition::SplitValue& value : function.values) {
      const std::string& name = value.name;
      if (name.starts_with("recompute/") && name.ends_with("/attention_residual")) {
        CHECK(to_string(value.placement, partition.placements.mesh) ==
              to_string(partition.placements.cut_points.at("layer.0/attention_residual"), partition.placements.mesh));
        ++placed;
      }
    }
  }
  CHECK(placed == 4);
}

TEST_CASE("programs print their buffers and how each instruction writes", "[partition]") {
  const ModelCase model = training_case("mlp", "mlp", {{"hidden", "3"}}, {.features = 2, .outputs = 1}, {.batch = 2});
  const std::string text = partition::to_string(programs_of(model));
  CHECK(text.find("state layer_0/weights f32[features 2, mlp 3] parameters @0x0+24\n") != std::string::npos);
  CHECK(text.find("state gradients/layer_1/weights f32[mlp 3, outputs 1] gradients @") != std::string::npos);
  CHECK(text.find("\nprogram micro rows 2: ") != std::string::npos);
  CHECK(text.find(" (+)= matmul_gradient_weights{contract=1, transpose=0} [") != std::string::npos);
}
