#include "core/partition/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "core/base/error.h"

namespace shardrun::partition {
namespace {

using graph::Function;
using graph::Node;
using graph::StateWrite;
using graph::Value;
using graph::ValueId;

std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

class Lowering {
 public:
  Lowering(const graph::Graph& graph, const Function& function, const std::vector<Buffer>& states,
           const device::Device& device, int threads)
      : graph_(graph),
        function_(function),
        device_(device),
        threads_(threads),
        end_(static_cast<std::int32_t>(function.nodes.size())) {
    program_.function = function.name;
    program_.rows = function.rows;
    program_.buffers = states;
    buffer_of_.assign(function.values.size(), -1);
    fused_.assign(function.values.size(), nullptr);
    copied_at_.assign(function.values.size(), -1);
  }

  Program run() {
    count_uses();
    schedule_writes();
    bind_states_and_inputs();
    for (std::int32_t n = 0; n < end_; ++n) {
      emit(function_.nodes[index(n)], n);
      copy_to_states(n);
    }
    copy_to_states(end_);
    count_in_instructions();
    for (const graph::Port& port : function_.outputs) {
      program_.outputs.push_back({.name = port.name, .buffer = buffer_of_[index(port.value)]});
    }
    return std::move(program_);
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return function_.values[index(id)]; }

  /// last_use_: the last node that reads a value; end_ where the function's end does.
  void count_uses() {
    last_use_.assign(function_.values.size(), -1);
    uses_.assign(function_.values.size(), 0);
    for (std::int32_t n = 0; n < end_; ++n) {
      for (const ValueId id : function_.nodes[index(n)].inputs) {
        last_use_[index(id)] = n;
        ++uses_[index(id)];
      }
    }
    for (const graph::Port& port : function_.outputs) {
      last_use_[index(port.value)] = end_;
      ++uses_[index(port.value)];
    }
    for (const StateWrite& write : function_.writes) {
      if (value(write.value).producer < 0) {
        last_use_[index(write.value)] = end_;
      }
      ++uses_[index(write.value)];
    }
  }

  [[nodiscard]] int result_index(ValueId id) const {
    const std::vector<ValueId>& outputs = function_.nodes[index(value(id).producer)].outputs;
    return static_cast<int>(std::find(outputs.begin(), outputs.end(), id) - outputs.begin());
  }

  /// The value that reads a state's old contents, if the function has one.
  [[nodiscard]] ValueId reader_of(graph::StateId state) const {
    for (std::size_t v = 0; v < function_.values.size(); ++v) {
      if (function_.values[v].state == state) {
        return static_cast<ValueId>(v);
      }
    }
    return graph::no_value;
  }

  /// When each write is made: a sum as soon as its value is there, earlier writes to the state are made and nothing
  /// reads the old contents any more; an assignment at the end, if its op cannot make it.
  void schedule_writes() {
    std::vector<std::int32_t> made(graph_.states.size(), -1);
    for (const StateWrite& write : function_.writes) {
      const std::int32_t producer = value(write.value).producer;
      const ValueId old = reader_of(write.state);
      std::int32_t at = std::max(producer, made[index(write.state)]);
      if (old != graph::no_value) {
        at = std::max(at, last_use_[index(old)]);
      }
      if (at == producer && can_fuse(write)) {
        fused_[index(write.value)] = &write;
      } else {
        at = write.mode == StateWrite::Mode::assign || producer < 0 ? end_ : at;
        copied_at_[index(write.value)] = std::max(copied_at_[index(write.value)], at);
      }
      made[index(write.state)] = at;
      write_at_.push_back(at);
    }
  }

  [[nodiscard]] bool can_fuse(const StateWrite& write) const {
    const std::int32_t producer = value(write.value).producer;
    if (producer < 0 || fused_[index(write.value)] != nullptr) {
      return false;
    }
    const Node& node = function_.nodes[index(producer)];
    const ValueId old = reader_of(write.state);
    const int result = result_index(write.value);
    if (write.mode != StateWrite::Mode::assign) {
      return node.op->accumulates && result == 0 && uses_[index(write.value)] == 1 && old == graph::no_value;
    }
    const auto to_same = [&](const StateWrite& other) { return other.state == write.state; };
    if (std::count_if(function_.writes.begin(), function_.writes.end(), to_same) > 1) {
      return false;
    }
    if (old == graph::no_value || last_use_[index(old)] < producer) {
      return true;
    }
    return last_use_[index(old)] == producer && updates_in_place(node, result, old);
  }

  /// Whether the node may overwrite `old` with its result: each operand that is `old` is declared in place with it.
  [[nodiscard]] static bool updates_in_place(const Node& node, int result, ValueId old) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::pair<int, int> pair = {result, static_cast<int>(i)};
      const auto& pairs = node.op->in_place;
      if (node.inputs[i] == old && std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) {
        return false;
      }
    }
    return true;
  }

  BufferId add_buffer(const std::string& name, const graph::TensorType& type, std::int32_t first) {
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(graph::element_count(type)) * device_.element_bytes(type.dtype);
    program_.buffers.push_back({.name = name, .type = type, .bytes = bytes, .first = first, .last = first});
    return static_cast<BufferId>(program_.buffers.size()) - 1;
  }

  void bind_states_and_inputs() {
    for (std::size_t v = 0; v < function_.values.size(); ++v) {
      if (function_.values[v].state >= 0) {
        buffer_of_[v] = function_.values[v].state;
      }
    }
    for (const graph::Port& port : function_.inputs) {
      const BufferId buffer = add_buffer(port.name, value(port.value).type, 0);
      buffer_of_[index(port.value)] = buffer;
      program_.buffers[index(buffer)].last = std::max(0, last_use_[index(port.value)]);
      program_.inputs.push_back({.name = port.name, .buffer = buffer});
    }
  }

  /// An operand's buffer that the result may take over, or nothing.
  [[nodiscard]] std::optional<BufferId> reusable(const Node& node, std::size_t result, std::int32_t n) const {
    const std::uint64_t bytes = static_cast<std::uint64_t>(graph::element_count(value(node.outputs[result]).type)) *
                                device_.element_bytes(value(node.outputs[result]).type.dtype);
    for (const auto& [output, input] : node.op->in_place) {
      if (output != static_cast<int>(result) || index(input) >= node.inputs.size()) {
        continue;
      }
      const ValueId operand = node.inputs[index(input)];
      const BufferId buffer = buffer_of_[index(operand)];
      const bool transient = index(buffer) >= graph_.states.size() && value(operand).producer >= 0;
      const bool once = std::count(node.inputs.begin(), node.inputs.end(), operand) == 1;
      const bool last = last_use_[index(operand)] == n && copied_at_[index(operand)] < n;
      if (transient && once && last && program_.buffers[index(buffer)].bytes == bytes) {
        return buffer;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] BufferId result_buffer(const Node& node, std::size_t result, std::int32_t n,
                                       std::vector<BufferId>& taken) {
    const ValueId id = node.outputs[result];
    if (fused_[index(id)] != nullptr) {
      return fused_[index(id)]->state;
    }
    const std::optional<BufferId> reused = reusable(node, result, n);
    if (reused && std::find(taken.begin(), taken.end(), *reused) == taken.end()) {
      taken.push_back(*reused);
      return *reused;
    }
    return add_buffer(value(id).name, value(id).type, n);
  }

  void emit(const Node& node, std::int32_t n) {
    Instruction instruction{
        .op = node.op, .name = node.name, .attributes = node.attributes, .phase = node.phase, .layer = node.layer};
    std::vector<graph::TensorType> inputs;
    std::vector<graph::TensorType> outputs;
    for (const ValueId id : node.inputs) {
      instruction.inputs.push_back(buffer_of_[index(id)]);
      inputs.push_back(value(id).type);
      extend(buffer_of_[index(id)], n);
    }
    std::vector<BufferId> taken;
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      const ValueId id = node.outputs[o];
      const BufferId buffer = result_buffer(node, o, n, taken);
      buffer_of_[index(id)] = buffer;
      instruction.outputs.push_back(buffer);
      outputs.push_back(value(id).type);
      extend(buffer, std::max(n, last_use_[index(id)]));
      if (o == 0 && fused_[index(id)] != nullptr) {
        instruction.accumulate = accumulate_of(fused_[index(id)]->mode);
      }
    }
    const graph::OpShape shape{instruction.attributes, inputs, outputs};
    instruction.flops = graph::flops(*node.op, shape);
    const device::Kernel& kernel = device_.kernel(node.op->name);
    instruction.scratch_bytes = kernel.scratch_bytes == nullptr ? 0 : kernel.scratch_bytes(shape, threads_);
    append(std::move(instruction), n);
  }

  void append(Instruction instruction, std::int32_t n) {
    program_.instructions.push_back(std::move(instruction));
    node_of_.push_back(n);
  }

  /// So far lives were counted in nodes; a node may have become several instructions.
  void count_in_instructions() {
    std::vector<std::int32_t> begin(index(end_) + 1, static_cast<std::int32_t>(node_of_.size()));
    std::vector<std::int32_t> last(index(end_) + 1, static_cast<std::int32_t>(node_of_.size()));
    for (std::size_t i = node_of_.size(); i-- > 0;) {
      begin[index(node_of_[i])] = static_cast<std::int32_t>(i);
    }
    for (std::size_t i = 0; i < node_of_.size(); ++i) {
      last[index(node_of_[i])] = static_cast<std::int32_t>(i);
    }
    for (std::size_t b = graph_.states.size(); b < program_.buffers.size(); ++b) {
      program_.buffers[b].first = begin[index(program_.buffers[b].first)];
      program_.buffers[b].last = last[index(program_.buffers[b].last)];
    }
  }

  static Accumulate accumulate_of(StateWrite::Mode mode) noexcept {
    switch (mode) {
      case StateWrite::Mode::assign: return Accumulate::never;
      case StateWrite::Mode::accumulate: return Accumulate::after_first;
      case StateWrite::Mode::add: return Accumulate::always;
    }
    return Accumulate::never;
  }

  /// Copies for the writes that are made after node n and not by it.
  void copy_to_states(std::int32_t n) {
    for (std::size_t w = 0; w < function_.writes.size(); ++w) {
      const StateWrite& write = function_.writes[w];
      if (write_at_[w] != n || fused_[index(write.value)] == &write) {
        continue;
      }
      check_source(write);
      const BufferId source = buffer_of_[index(write.value)];
      extend(source, n);
      const std::vector<graph::TensorType> type = {value(write.value).type};
      Instruction copy{.op = &graph::find_op("copy"),
                       .name = "write/" + graph_.states[index(write.state)].name,
                       .inputs = {source},
                       .outputs = {write.state},
                       .accumulate = accumulate_of(write.mode)};
      copy.flops = write.mode == StateWrite::Mode::assign ? 0 : graph::element_count(type[0]);
      append(std::move(copy), n);
    }
  }

  /// A state copied to another must still hold its old contents when the copies are made.
  void check_source(const StateWrite& write) const {
    const graph::StateId source = value(write.value).state;
    for (const StateWrite& other : function_.writes) {
      if (source >= 0 && other.state == source) {
        throw Error(ErrorCode::internal, fmt::format("function {}: state {} is copied and overwritten in one call",
                                                     function_.name, graph_.states[index(source)].name));
      }
    }
  }

  void extend(BufferId buffer, std::int32_t until) {
    std::int32_t& last = program_.buffers[index(buffer)].last;
    last = std::max(last, until);
  }

  const graph::Graph& graph_;
  const Function& function_;
  const device::Device& device_;
  int threads_;
  std::int32_t end_;
  Program program_;
  std::vector<BufferId> buffer_of_;
  std::vector<const StateWrite*> fused_;  ///< the write that the op making a value makes with it
  std::vector<std::int32_t> write_at_;    ///< after which node each write is made
  std::vector<std::int32_t> copied_at_;   ///< after which node a value is last copied to a state, or -1
  std::vector<std::int32_t> last_use_;
  std::vector<int> uses_;
  std::vector<std::int32_t> node_of_;  ///< of each instruction
};

}  // namespace

Program lower(const graph::Graph& graph, const Function& function, const std::vector<Buffer>& states,
              const device::Device& device, int threads) {
  return Lowering(graph, function, states, device, threads).run();
}

}  // namespace shardrun::partition
