#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/tensor_type.h"
#include "core/runtime/collectives.h"
#include "core/runtime/executor.h"
#include "plugins/loader/engine.h"

namespace shardrun::runtime {

/// A dimension of an array. `outer`: the product of the sizes of the dimensions before it. `inner`: of those after it.
struct ArrayAxis {
  ArrayAxis(const std::vector<std::int64_t>& shape, std::uint32_t axis);

  /// Elements of a block that has `extent` indices along the axis.
  [[nodiscard]] std::uint64_t block(std::int64_t extent) const noexcept {
    return static_cast<std::uint64_t>(outer * extent * inner);
  }

  std::int64_t outer = 1;
  std::int64_t inner = 1;
};

/// The sizes of the parts into which `extent` indices are cut. They differ by at most one; larger parts come first.
[[nodiscard]] std::vector<std::int64_t> parts_of(std::int64_t extent, std::uint32_t parts);

/// The blocks of an array along an axis, one after the other in memory, in the order of the ranks. If they are already
/// laid out so in the array, this is the array's own memory.
class ArrayBlocks {
 public:
  /// `sizes`: one extent along the axis per rank. REQUIRES: `whole` and `axis` outlive this object.
  ArrayBlocks(void* whole, graph::DType element, const ArrayAxis& axis, std::vector<std::int64_t> sizes);

  [[nodiscard]] std::byte* data() noexcept { return axis_.outer > 1 ? own_.data() : whole_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Elements of each block.
  [[nodiscard]] std::vector<std::uint64_t> counts() const;
  void take_from_array() { copy(false); }
  void give_to_array() { copy(true); }

 private:
  void copy(bool into_array);

  std::byte* whole_;
  std::int64_t element_bytes_;
  const ArrayAxis& axis_;
  std::vector<std::int64_t> sizes_;
  std::int64_t extent_ = 0;
  std::vector<std::byte> own_;
};

/// The collectives of an engine, on arrays whose shapes are known only when they are called. Before each collective the
/// ranks compare their calls. Along an axis, arrays are cut as sdk::part_of does. Only one thread may use it.
class ArrayCollectives final : public plugins::EngineRanks {
 public:
  /// `collectives`: has one mesh axis with all ranks, and outlives this object; null with one rank. `messages`: whether
  /// to connect each rank with each other one in both directions, for sends. All ranks construct it at the same point.
  ArrayCollectives(Collectives* collectives, std::uint32_t rank, std::uint32_t world_size, bool messages);

  /// From now on records calls and transfers whenever `executor` records. `executor` outlives this object.
  void record_with(Executor& executor) noexcept { executor_ = &executor; }

  [[nodiscard]] std::uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] std::uint32_t world_size() const noexcept override { return world_size_; }
  void barrier() override;
  [[nodiscard]] std::uint64_t start_send(std::uint32_t to, const plugins::ArrayView& array) override;
  [[nodiscard]] std::uint64_t start_receive(std::uint32_t from, const plugins::ArrayView& array) override;
  [[nodiscard]] bool test(std::uint64_t message) override;
  void wait(std::uint64_t message) override;
  void receive(std::uint32_t from, const plugins::MakeArray& make) override;
  void all_gather(const plugins::ArrayView& array, std::uint32_t axis, const plugins::MakeArray& make) override;
  void all_reduce(const plugins::ArrayView& array, std::uint32_t reduction, const plugins::MakeArray& make) override;
  void reduce_scatter(const plugins::ArrayView& array, std::uint32_t axis, std::uint32_t reduction,
                      const plugins::MakeArray& make) override;
  void all_to_all(const plugins::ArrayView& array, std::uint32_t axis, const plugins::MakeArray& make) override;
  void broadcast(const std::optional<plugins::ArrayView>& array, std::uint32_t root,
                 const plugins::MakeArray& make) override;

  /// Replaces each number by its sum over the ranks.
  void add_up(std::span<double> numbers);

  void end() noexcept override;

  /// Throws Error{plugin} if a message was started but not waited for, or if a message of this rank was not received.
  /// All ranks call it when their engines have ended.
  void require_no_messages();

 private:
  /// A rank's call, described in bytes that ranks exchange. For a message, it describes the array.
  struct Facts {
    std::uint32_t call = 0;
    std::uint32_t element = 0;
    std::uint32_t dimensions = 0;
    std::uint32_t axis = 0;  ///< or the root
    std::uint32_t reduction = 0;
    std::uint32_t reserved = 0;
    std::array<std::int64_t, 7> shape = {};
  };

  /// A transfer in progress.
  struct Part {
    Collectives::Handle op = 0;
    std::size_t recorded = Timeline::most_of_engine;  ///< its place among Timeline::moved()
  };

  /// A group of two ranks.
  struct Link {
    std::size_t group = 0;
    std::uint64_t transfers = 0;  ///< number of transfers so far, which both ranks count alike
    std::uint64_t messages = 0;   ///< number of messages sent, or received
    Facts latest;                 ///< facts of the message that was sent last
  };

  /// A message in progress: its header, then its elements.
  struct Message {
    std::uint32_t peer = 0;
    bool is_send = false;
    Facts facts;
    bool has_header = false;                   ///< whether a receive has got `facts`
    plugins::ArrayView array;                  ///< the engine's array
    const plugins::MakeArray* make = nullptr;  ///< for a receive that does not know its array yet
    /// A copy of what is moved, because an engine that fails may free its array before the transport ends.
    std::vector<std::byte> bytes;
    std::optional<Part> header;
    std::optional<Part> data;
    bool is_complete = false;
  };

  [[nodiscard]] static Facts facts_of(std::uint32_t call, const plugins::ArrayView& array);
  [[nodiscard]] static std::vector<std::int64_t> shape_of(const Facts& facts);
  /// Exchanges the facts of all ranks. Throws Error{plugin} unless all call the same function with the same axis (or
  /// root) and reduction and, except for a barrier or broadcast, the same element type and number of dimensions.
  [[nodiscard]] std::vector<Facts> compare(const Facts& own);
  /// Throws Error{plugin} unless all arrays have the same shape, except along `axis`.
  void require_same_shape(const std::vector<Facts>& all, std::optional<std::uint32_t> axis) const;
  void run(sdk::OpSpec op);
  [[nodiscard]] Part start(std::size_t group, sdk::OpSpec op, std::string message);
  void finish(const Part& part);
  [[nodiscard]] Timeline* timeline() const noexcept { return executor_ == nullptr ? nullptr : executor_->timeline(); }
  [[nodiscard]] TimedCall timed(std::string_view name, std::int64_t bytes = 0) const {
    return {executor_, Timeline::Call::Kind::operation, name, bytes};
  }
  [[nodiscard]] Link& link(std::uint32_t peer, bool is_send);
  std::uint64_t add_message(Message message);
  [[nodiscard]] Part start_part(const Message& message, std::string_view what, std::uint64_t count, void* data,
                                std::uint64_t bytes, std::uint32_t dtype);
  void start_header(Message& message);
  void start_data(Message& message);
  /// Gives a received array to the engine.
  static void deliver(const Message& message);
  /// Advances a message as far as possible or, if `waits`, until it is complete.
  void advance(Message& message, bool waits);
  bool finished(std::optional<Part>& part, bool waits);
  /// Advances earlier receives from the same rank, which must complete first. Returns whether they are complete.
  bool advance_earlier(std::uint64_t number, const Message& message, bool waits);
  void end_message(std::uint64_t number);

  Collectives* collectives_;
  Executor* executor_ = nullptr;
  std::uint32_t rank_;
  std::uint32_t world_size_;
  std::size_t group_ = 0;                                 ///< the group of all ranks
  std::map<std::pair<std::uint32_t, bool>, Link> links_;  ///< by peer, and whether this rank sends
  std::map<std::uint64_t, Message> messages_;
  std::uint64_t next_message_ = 0;
};

}  // namespace shardrun::runtime
