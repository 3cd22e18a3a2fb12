// Compares every op as the partitioner splits it with the op that is not split. Each axis of its operands is split over
// two and three ranks, and over more ranks than it has indices, so that some rank's part is empty. A split that the
// op's rule does not allow is gathered, and partial results are reduced.

#include <algorithm>
#include <set>

#include "core/graph/builder.h"
#include "core/runtime/interpreter.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::string result_name(std::size_t number) { return "result" + std::to_string(number); }
std::string operand_name(std::size_t number) { return "operand" + std::to_string(number); }

/// A function that writes each result of the op into a state.
graph::Graph graph_of(const Prepared& prepared) {
  graph::Graph graph;
  for (std::size_t o = 0; o < prepared.outputs.size(); ++o) {
    graph.states.push_back({.name = result_name(o), .type = prepared.outputs[o].type, .kind = graph::StateKind::field});
  }
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  std::vector<graph::ValueId> operands;
  for (std::size_t i = 0; i < prepared.inputs.size(); ++i) {
    operands.push_back(builder.input(operand_name(i), prepared.inputs[i].type));
  }
  const std::vector<graph::ValueId> results = builder.call_all(prepared.op->name, operands, prepared.attributes);
  for (std::size_t o = 0; o < results.size(); ++o) {
    builder.write(graph::StateId(o), results[o], graph::StateWrite::Mode::assign);
  }
  builder.finish();
  return graph;
}

std::set<std::string> axes_of(const Prepared& prepared) {
  std::set<std::string> axes;
  for (const Tensor& input : prepared.inputs) {
    axes.insert(input.type.axes.begin(), input.type.axes.end());
  }
  for (const Tensor& output : prepared.outputs) {
    axes.insert(output.type.axes.begin(), output.type.axes.end());
  }
  return axes;
}

bool has_two_indices(const graph::TensorType& type, const std::string& axis) {
  const auto found = std::ranges::find(type.axes, axis);
  return found != type.axes.end() && type.shape[static_cast<std::size_t>(found - type.axes.begin())] > 1;
}

/// Numbers of ranks for which some rank has an empty part of the axis: in the tensor with the fewest indices of it, and
/// in the one with the most.
std::set<std::uint32_t> counts_with_empty_parts(const Prepared& prepared, const std::string& axis) {
  std::set<std::uint32_t> counts;
  for (const std::vector<Tensor>* tensors : {&prepared.inputs, &prepared.outputs}) {
    for (const Tensor& tensor : *tensors) {
      for (std::size_t d = 0; d < tensor.type.shape.size(); ++d) {
        if (tensor.type.axes[d] == axis && tensor.type.shape[d] < 10) {
          counts.insert(static_cast<std::uint32_t>(tensor.type.shape[d]) + 1);
        }
      }
    }
  }
  return counts.empty() ? counts : std::set{*counts.begin(), *counts.rbegin()};
}

void check_split(const device::Device& device, const Prepared& prepared, const std::string& axis, std::uint32_t count,
                 Tolerance tolerance) {
  const graph::Graph graph = graph_of(prepared);
  const plan::Plan plan = plan_of({{"m", count}}, {{axis, {"m"}}});
  runtime::Interpreter ranks(graph, partition::split(graph, plan), device, 1);
  for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
    for (std::size_t i = 0; i < prepared.inputs.size(); ++i) {
      const device::TensorView part = ranks.rank(rank).input(0, operand_name(i));
      const graph::TensorType& whole = prepared.inputs[i].type;
      CHECK((part.elements() < graph::element_count(whole) || !has_two_indices(whole, axis)));
      write_part(prepared.inputs[i], part);
    }
  }

  ranks.run("f", 1, true, scalars_of_tests());

  const std::vector<Tensor> expected = run(device, prepared);
  for (std::size_t o = 0; o < expected.size(); ++o) {
    Tensor whole = zeros(expected[o].type);
    std::vector<int> filled(whole.values.size(), 0);
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      CHECK(gather_part(ranks.rank(rank).state(graph::StateId(o)), whole, filled));
    }
    CHECK(std::count(filled.begin(), filled.end(), 0) == 0);
    CHECK(difference(whole, expected[o], tolerance) == "");
  }
}

void check_splits(const Case& test, const std::string& axis, const std::set<std::uint32_t>& counts) {
  const Prepared prepared = prepare(test);
  for (const std::uint32_t count : counts) {
    INFO(to_string(test) << ", axis " << axis << " over " << count);
    check_split(reference(), prepared, axis, count, {.of_largest = 1e-13});
    check_split(fast(), prepared, axis, count, {.of_largest = 2e-6 * test.condition});
  }
}

}  // namespace

TEST_CASE("every op has the same result split over 2 and 3 ranks, or over more ranks than indices", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    DYNAMIC_SECTION(op->name) {
      for (const Case& test : cases_of(op->name)) {
        const Prepared prepared = prepare(test);
        for (const std::string& axis : axes_of(prepared)) {
          if (largest_operand(test) <= 200) {
            check_splits(test, axis, {2, 3});
            check_splits(test, axis, counts_with_empty_parts(prepared, axis));
          }
        }
      }
    }
  }
}
