#pragma once

/// sr_op as a C++ value, and functions of an op: who sends and receives how much, whether it is in place, and its text.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/transport.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::sdk {

/// A transport's failure: an SR_... status and its reason. The reason names the op, the peer, and what was waited for.
class TransportError : public std::runtime_error {
 public:
  /// `awaited`: see sr_error::awaited; a rank of the world, not an index into a group.
  TransportError(std::int32_t status, const std::string& text, std::optional<std::uint32_t> awaited = std::nullopt)
      : std::runtime_error(text), status_(status), awaited_(awaited) {}
  /// Takes the reason from the `error` that a plugin or the host has filled in.
  TransportError(std::int32_t status, const sr_error& error)
      : TransportError(status, std::string(error.text, ::strnlen(error.text, sizeof(error.text))),
                       error.awaited != 0 ? std::optional(error.awaited - 1) : std::nullopt) {}

  [[nodiscard]] std::int32_t status() const noexcept { return status_; }
  [[nodiscard]] std::optional<std::uint32_t> awaited() const noexcept { return awaited_; }

  /// The same error, with "PREFIX: " before its reason.
  [[nodiscard]] TransportError within(const std::string& prefix) const {
    return {status_, prefix + ": " + what(), awaited_};
  }

 private:
  std::int32_t status_;
  std::optional<std::uint32_t> awaited_;
};

namespace detail {

/// Calls a function of the C interface that takes an sr_error* and returns a status. Throws TransportError.
template <class Call>
void call_transport(Call call) {
  sr_error error{};
  error.struct_size = sizeof(error);
  const std::int32_t status = call(&error);
  if (status != SR_OK) {
    throw TransportError(status, error);
  }
}

}  // namespace detail

/// The ranks for which an op waits: their names for a message, separated by ", ", and the first rank.
struct AwaitedRanks {
  std::string names;
  std::optional<std::uint32_t> first;

  void add(const std::string& name, std::uint32_t rank) {
    names += (names.empty() ? "" : ", ") + name;
    first = first ? first : rank;
  }
};

/// The C++ form of sr_buffer.
struct Buffer {
  void* data = nullptr;
  std::uint64_t bytes = 0;
  std::uint64_t registration = 0;  ///< 0: not in registered memory
  std::uint32_t kind = SR_MEMORY_HOST;
  std::uint32_t device = 0;

  bool operator==(const Buffer&) const = default;
};

/// The C++ form of sr_op.
struct OpSpec {
  std::uint32_t opcode = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reduction = 0;
  std::uint32_t peer = 0;
  std::uint32_t flags = 0;
  std::uint64_t id = 0;
  std::uint64_t count = 0;
  std::vector<std::uint64_t> send_counts = {};
  std::vector<std::uint64_t> recv_counts = {};
  std::optional<Buffer> send = {};
  std::optional<Buffer> recv = {};
  std::optional<Buffer> scratch = {};
  std::string label = {};

  bool operator==(const OpSpec&) const = default;
};

/// The C++ form of sr_op_info.
struct OpInfo {
  std::uint32_t flags = 0;  ///< SR_OP_INFO_...
  std::uint64_t scratch_bytes = 0;

  bool operator==(const OpInfo&) const = default;
};

/// The C++ form of sr_op_times: when an op's latest run was in progress, by monotonic_now(), and for how many
/// nanoseconds threads had no core meanwhile.
struct OpTimes {
  std::int64_t begun = 0;
  std::int64_t ended = 0;
  std::int64_t starved = 0;
  std::int64_t yielded = 0;

  bool operator==(const OpTimes&) const = default;
};

/// The C++ form of sr_arrivals: long messages that came in from another rank, and the nanoseconds in which they came.
struct Arrivals {
  std::uint64_t bytes = 0;
  std::uint64_t nanoseconds = 0;

  bool operator==(const Arrivals&) const = default;
};

/// Properties of every op with this opcode.
struct OpcodeTraits {
  std::uint32_t opcode = 0;
  std::string_view name;
  bool collective = true;
  bool reduces = false;
  bool has_root = false;
  bool has_send_counts = false;
  bool has_recv_counts = false;
};

inline constexpr std::array<OpcodeTraits, 14> opcodes = {{
    {SR_OP_SEND, "send", false},
    {SR_OP_RECV, "recv", false},
    {SR_OP_BARRIER, "barrier"},
    {SR_OP_BROADCAST, "broadcast", true, false, true},
    {SR_OP_REDUCE, "reduce", true, true, true},
    {SR_OP_ALL_REDUCE, "all_reduce", true, true},
    {SR_OP_ALL_GATHER, "all_gather"},
    {SR_OP_ALL_GATHERV, "all_gatherv", true, false, false, false, true},
    {SR_OP_REDUCE_SCATTER, "reduce_scatter", true, true},
    {SR_OP_REDUCE_SCATTERV, "reduce_scatterv", true, true, false, false, true},
    {SR_OP_ALL_TO_ALL, "all_to_all"},
    {SR_OP_ALL_TO_ALLV, "all_to_allv", true, false, false, true, true},
    {SR_OP_GATHER, "gather", true, false, true},
    {SR_OP_SCATTER, "scatter", true, false, true},
}};

/// Returns null for an unknown opcode.
[[nodiscard]] constexpr const OpcodeTraits* find_opcode(std::uint32_t opcode) noexcept {
  for (const OpcodeTraits& traits : opcodes) {
    if (traits.opcode == opcode) {
      return &traits;
    }
  }
  return nullptr;
}

struct DtypeTraits {
  std::uint32_t dtype = 0;
  std::string_view name;
  std::uint32_t bytes = 0;
};

inline constexpr std::array<DtypeTraits, 10> dtypes = {{
    {SR_DTYPE_F32, "f32", 4},
    {SR_DTYPE_F64, "f64", 8},
    {SR_DTYPE_F16, "f16", 2},
    {SR_DTYPE_BF16, "bf16", 2},
    {SR_DTYPE_I8, "i8", 1},
    {SR_DTYPE_U8, "u8", 1},
    {SR_DTYPE_I32, "i32", 4},
    {SR_DTYPE_U32, "u32", 4},
    {SR_DTYPE_I64, "i64", 8},
    {SR_DTYPE_U64, "u64", 8},
}};

/// Bytes of an element; 0 for an unknown dtype (or an op without one).
[[nodiscard]] constexpr std::uint64_t dtype_size(std::uint32_t dtype) noexcept {
  for (const DtypeTraits& traits : dtypes) {
    if (traits.dtype == dtype) {
      return traits.bytes;
    }
  }
  return 0;
}

struct ReductionTraits {
  std::uint32_t reduction = 0;
  std::string_view name;
};

inline constexpr std::array<ReductionTraits, 4> reductions = {{
    {SR_REDUCE_SUM, "sum"},
    {SR_REDUCE_PRODUCT, "product"},
    {SR_REDUCE_MIN, "min"},
    {SR_REDUCE_MAX, "max"},
}};

[[nodiscard]] constexpr bool is_reduction(std::uint32_t reduction) noexcept {
  return reduction >= SR_REDUCE_SUM && reduction <= SR_REDUCE_MAX;
}

/// Whether partial results need more bits than the dtype has, so that SR_OP_INFO_ROUNDED_ONCE makes a difference: sums
/// and products of f16 and bf16 over more than two members.
[[nodiscard]] inline bool has_wide_partials(const OpSpec& op, std::uint32_t n) noexcept {
  const OpcodeTraits* traits = find_opcode(op.opcode);
  return traits != nullptr && traits->reduces && n > 2 && (op.dtype == SR_DTYPE_F16 || op.dtype == SR_DTYPE_BF16) &&
         (op.reduction == SR_REDUCE_SUM || op.reduction == SR_REDUCE_PRODUCT);
}

/// A range of elements within a buffer.
struct Block {
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};

namespace detail {

[[nodiscard]] inline Block nth_block(const std::vector<std::uint64_t>& counts, std::uint32_t index) {
  Block block;
  for (std::uint32_t i = 0; i < index; ++i) {
    block.offset += counts[i];
  }
  block.count = counts[index];
  return block;
}

[[nodiscard]] inline std::uint64_t sum(const std::vector<std::uint64_t>& counts) {
  std::uint64_t total = 0;
  for (const std::uint64_t count : counts) {
    total += count;
  }
  return total;
}

}  // namespace detail

/// The part of member `rank`'s send buffer that goes to member `to`. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Block send_block(const OpSpec& op, std::uint32_t rank, std::uint32_t to) {
  switch (op.opcode) {
    case SR_OP_SEND: return {0, to == op.peer ? op.count : 0};
    case SR_OP_BROADCAST: return {0, rank == op.peer ? op.count : 0};
    case SR_OP_SCATTER: return rank == op.peer ? Block{to * op.count, op.count} : Block{};
    case SR_OP_REDUCE:
    case SR_OP_GATHER: return {0, to == op.peer ? op.count : 0};
    case SR_OP_ALL_REDUCE:
    case SR_OP_ALL_GATHER: return {0, op.count};
    case SR_OP_ALL_GATHERV: return {0, op.recv_counts[rank]};
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_ALL_TO_ALL: return {to * op.count, op.count};
    case SR_OP_REDUCE_SCATTERV: return detail::nth_block(op.recv_counts, to);
    case SR_OP_ALL_TO_ALLV: return detail::nth_block(op.send_counts, to);
    default: return {};
  }
}

/// The part of member `rank`'s recv buffer that comes from member `from`. For ops that reduce, every member contributes
/// to all of it. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Block recv_block(const OpSpec& op, std::uint32_t rank, std::uint32_t from) {
  switch (op.opcode) {
    case SR_OP_RECV:
    case SR_OP_BROADCAST:
    case SR_OP_SCATTER: return {0, from == op.peer ? op.count : 0};
    case SR_OP_REDUCE: return {0, rank == op.peer ? op.count : 0};
    case SR_OP_GATHER: return rank == op.peer ? Block{from * op.count, op.count} : Block{};
    case SR_OP_ALL_REDUCE:
    case SR_OP_REDUCE_SCATTER: return {0, op.count};
    case SR_OP_REDUCE_SCATTERV: return {0, op.recv_counts[rank]};
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_TO_ALL: return {from * op.count, op.count};
    case SR_OP_ALL_GATHERV:
    case SR_OP_ALL_TO_ALLV: return detail::nth_block(op.recv_counts, from);
    default: return {};
  }
}

/// Number of elements that member `rank` of n reads from its send buffer. REQUIRES: check(op, n) passed.
[[nodiscard]] inline std::uint64_t send_elements(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  switch (op.opcode) {
    case SR_OP_SEND:
    case SR_OP_REDUCE:
    case SR_OP_ALL_REDUCE:
    case SR_OP_ALL_GATHER:
    case SR_OP_GATHER: return op.count;
    case SR_OP_BROADCAST: return rank == op.peer ? op.count : 0;
    case SR_OP_SCATTER: return rank == op.peer ? n * op.count : 0;
    case SR_OP_ALL_GATHERV: return op.recv_counts[rank];
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_ALL_TO_ALL: return n * op.count;
    case SR_OP_REDUCE_SCATTERV: return detail::sum(op.recv_counts);
    case SR_OP_ALL_TO_ALLV: return detail::sum(op.send_counts);
    default: return 0;
  }
}

/// Number of elements that member `rank` of n receives in its recv buffer. REQUIRES: check(op, n) passed.
[[nodiscard]] inline std::uint64_t recv_elements(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  switch (op.opcode) {
    case SR_OP_RECV:
    case SR_OP_BROADCAST:
    case SR_OP_ALL_REDUCE:
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_SCATTER: return op.count;
    case SR_OP_REDUCE: return rank == op.peer ? op.count : 0;
    case SR_OP_GATHER: return rank == op.peer ? n * op.count : 0;
    case SR_OP_REDUCE_SCATTERV: return op.recv_counts[rank];
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_TO_ALL: return n * op.count;
    case SR_OP_ALL_GATHERV:
    case SR_OP_ALL_TO_ALLV: return detail::sum(op.recv_counts);
    default: return 0;
  }
}

/// A text for messages: "all_reduce (sum) of 12 f32 'layer.0.weight'".
[[nodiscard]] inline std::string describe(const OpSpec& op) {
  const OpcodeTraits* traits = find_opcode(op.opcode);
  std::string text = traits != nullptr ? std::string(traits->name) : "op " + std::to_string(op.opcode);
  if (traits != nullptr && traits->reduces && is_reduction(op.reduction)) {
    text += " (" + std::string(reductions[op.reduction - SR_REDUCE_SUM].name) + ")";
  }
  if (op.opcode != SR_OP_BARRIER) {
    const bool counted = traits != nullptr && (traits->has_send_counts || traits->has_recv_counts);
    text += " of " + std::to_string(counted ? detail::sum(op.recv_counts) : op.count);
    for (const DtypeTraits& dtype : dtypes) {
      if (dtype.dtype == op.dtype) {
        text += " " + std::string(dtype.name);
      }
    }
  }
  if (traits != nullptr && (!traits->collective || traits->has_root)) {
    text += (op.opcode == SR_OP_SEND   ? " to member "
             : op.opcode == SR_OP_RECV ? " from member "
                                       : " at member ") +
            std::to_string(op.peer);
  }
  return op.label.empty() ? text : text + " '" + op.label + "'";
}

namespace detail {

[[noreturn]] inline void refuse(const OpSpec& op, const std::string& why) {
  throw TransportError(SR_INVALID, describe(op) + ": " + why);
}

[[nodiscard]] inline const unsigned char* bytes_of(const Buffer& buffer) noexcept {
  return static_cast<const unsigned char*>(buffer.data);
}

/// The offset of `send` relative to `recv` if the op is in place, in elements. Nothing for ops that are never in place.
[[nodiscard]] inline std::optional<std::int64_t> in_place_offset(const OpSpec& op, std::uint32_t rank) {
  switch (op.opcode) {
    case SR_OP_BROADCAST:
    case SR_OP_REDUCE:
    case SR_OP_ALL_REDUCE: return 0;
    case SR_OP_ALL_GATHER:
    case SR_OP_ALL_GATHERV: return static_cast<std::int64_t>(recv_block(op, rank, rank).offset);
    case SR_OP_REDUCE_SCATTER:
    case SR_OP_REDUCE_SCATTERV: return -static_cast<std::int64_t>(send_block(op, rank, rank).offset);
    default: return std::nullopt;
  }
}

}  // namespace detail

/// Whether member `rank`'s send and recv buffers are in place. REQUIRES: validate(op, rank, n) passed.
[[nodiscard]] inline bool is_in_place(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  const std::optional<std::int64_t> offset = detail::in_place_offset(op, rank);
  if (!offset || send_elements(op, rank, n) == 0 || recv_elements(op, rank, n) == 0) {
    return false;
  }
  return detail::bytes_of(*op.send) ==
         detail::bytes_of(*op.recv) + *offset * static_cast<std::int64_t>(dtype_size(op.dtype));
}

}  // namespace shardrun::sdk
