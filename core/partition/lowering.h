#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/partition/emitter.h"
#include "core/partition/lower.h"
#include "core/partition/placements.h"
#include "core/partition/usage.h"

namespace shardrun::partition {

/// Emits a hook's calls and exchanges for one bucket on one rank, one exchange at a time.
class HookSteps {
 public:
  /// `span`: the steps in which the hook's buffers live. REQUIRES: the arguments outlive this; one of the bucket's
  /// steps is the hook.
  HookSteps(const Bucket& bucket, const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            Span span);

  /// Emits the calls up to the next exchange, and adds that exchange's transfer, which the caller has to start. Returns
  /// the transfer; no id if no exchange is left.
  [[nodiscard]] TransferId go_on(StepId step);

 private:
  [[nodiscard]] Transfer transfer_of(const plan::HookStep& step) const;

  const PlacedHook& hook_;
  const std::optional<BucketHook>& of_rank_;
  Emitter& emitter_;
  Span span_;
  std::int64_t members_;
  std::uint32_t member_;
  HookSamples samples_;
  std::string name_;
  std::vector<Region> regions_;
  std::vector<graph::DType> dtypes_;   ///< element types in memory
  std::vector<graph::DType> rounded_;  ///< element types in the graph; see Transfer::rounded
  std::size_t next_ = 0;               ///< index in the steps of the hook's plan
};

/// Emits the collectives that finalize a function's buckets. A bucket starts as soon as it is complete, so that its
/// collectives overlap with computing. If it is summed over stages in device memory, it starts at the end
/// (launch_order.h).
class Finalizer {
 public:
  /// `complete_at`: the step of the last write to each state. REQUIRES: the arguments outlive this.
  Finalizer(const LowerSettings& settings, const mesh::Coordinates& at, Emitter& emitter,
            const IdVector<graph::StateId, StepId>& complete_at);

  /// Starts the buckets that get their last contribution in step s. Call it with each step, in order.
  void start(StepId s);

  /// Waits for all buckets in step `end`. A bucket over several axes is reduced along one axis after the other.
  void finish(StepId end);

 private:
  /// A bucket whose finalization has started.
  struct UnderWay {
    const Bucket* bucket = nullptr;
    std::size_t step = 0;  ///< index of the finalization's current step
    std::vector<TransferId> transfers;
    std::optional<HookSteps> hook;  ///< set if the current step is a hook
  };

  void begin_step(UnderWay& bucket, StepId s);
  [[nodiscard]] bool go_on(UnderWay& bucket, StepId s);
  void round_masters(const Bucket& bucket, StepId s);
  [[nodiscard]] Instruction instruction(Instruction::Kind kind, TransferId transfer);

  const LowerSettings& settings_;
  const mesh::Coordinates& at_;
  Emitter& emitter_;
  /// Each bucket's index and the step after which it is complete, sorted.
  std::vector<std::pair<StepId, std::size_t>> order_;
  std::size_t next_ = 0;  ///< index in order_ of the next bucket to start
  std::deque<UnderWay> under_way_;
};

/// Lowers one function for one rank. lower.cpp lowers nodes, lower_transfers.cpp lowers transitions, lower_buffers.cpp
/// assigns a buffer to each value.
class Lowering {
 public:
  Lowering(const SplitFunction& function, const LowerSettings& settings);

  Program run();

 private:
  /// The box and the type of this rank's part of a value.
  struct Part {
    mesh::Box box;
    graph::TensorType type;
    std::uint64_t bytes = 0;
  };

  struct Cost {
    std::int64_t flops = 0;
    std::uint64_t scratch_bytes = 0;
  };

  [[nodiscard]] const SplitValue& value(graph::ValueId id) const { return function_.values[id]; }
  [[nodiscard]] const SplitNode& node(graph::NodeId n) const { return function_.nodes[n]; }
  [[nodiscard]] const Part& part(graph::ValueId id) const { return parts_[value(id).alike]; }
  [[nodiscard]] const graph::TensorType& type(graph::ValueId id) const { return part(id).type; }
  [[nodiscard]] const mesh::Box& box(graph::ValueId id) const { return part(id).box; }

  [[nodiscard]] bool is_state(BufferId buffer) const { return buffer < buffer_of(graph_.states.next()); }

  // These functions are in lower_buffers.cpp.
  void find_parts();
  void bind_states_and_inputs();
  BufferId add_buffer(const std::string& name, graph::ValueId id, StepId first);
  BufferId add_view(graph::ValueId id);
  BufferId add_received(Buffer state);
  [[nodiscard]] Region staging(const std::string& name, graph::DType dtype, const std::vector<std::int64_t>& counts,
                               Span span);
  BufferId bind_result(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken);
  [[nodiscard]] BufferId result_buffer(graph::NodeId n, std::size_t result, std::vector<BufferId>& taken);
  [[nodiscard]] std::optional<BufferId> reusable(graph::NodeId n, std::size_t result) const;

  // These functions are in lower.cpp.
  void emit_step(const Step& step, StepId s);
  void emit_op(graph::NodeId n, StepId s);
  void emit_slice(graph::NodeId n, StepId s);
  void emit_move(const SplitNode& node, BufferId from, BufferId to, std::vector<Copy> copies, StepId s);
  void copy_to_states(StepId s);
  void check_source(const graph::StateWrite& write) const;
  [[nodiscard]] Cost cost_of(const SplitNode& node, const graph::Attributes& attributes);
  [[nodiscard]] Cost reckon(const graph::Node& node, const graph::Attributes& attributes) const;

  // These functions are in lower_transfers.cpp.
  void start_transfers(const Step& step, StepId s);
  void start_in_order(graph::NodeId n, StepId s);
  void finish_transfers(const Step& step, StepId s);
  void prepare_message(graph::NodeId n);
  void keep(BufferId buffer);
  void prepare_collective(graph::NodeId n);
  void add_received_blocks(graph::NodeId n, const std::vector<Copy>& blocks, StepId s);
  void move_own(graph::NodeId n, StepId s);
  [[nodiscard]] Instruction transfer_step(Instruction::Kind kind, graph::NodeId n) const;
  void exchange_ties();
  void exchange_tie(const Tie& tie);
  /// The call that instructions at the end of the function belong to.
  [[nodiscard]] std::size_t last_call() const { return program_.call_rows.size() - 1; }

  const graph::Graph& graph_;
  const LowerSettings& settings_;
  const SplitFunction& function_;
  const mesh::Mesh& mesh_;
  const device::Device& device_;
  mesh::Coordinates coordinates_;
  StepId end_;
  Usage usage_;
  Emitter emitter_;
  Program& program_;  ///< owned by emitter_
  Finalizer finalizer_;
  IdVector<graph::ValueId, BufferId> buffer_of_;
  IdVector<graph::ValueId, Part> parts_;                 ///< stored at the first of several alike values
  IdVector<graph::NodeId, std::optional<Cost>> costs_;   ///< stored at the first of several alike nodes
  std::map<graph::NodeId, TransferId> transfer_of_;      ///< the transfers of prepared transitions
  std::map<std::size_t, graph::NodeId> held_back_;       ///< by place: prepared, not yet started
  std::size_t next_place_ = 0;                           ///< the place of the next transition to start
  std::map<graph::NodeId, std::vector<Copy>> unpacked_;  ///< copies from staging to make when the transfer has ended
};

}  // namespace shardrun::partition
