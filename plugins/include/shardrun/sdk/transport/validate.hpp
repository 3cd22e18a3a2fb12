#pragma once

/// Checks of ops. The host's calls are checked before they reach an author's class.

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::sdk {

namespace detail {

/// Requires one count for each member, all so small that neither their sum nor its bytes can overflow.
inline void check_counts(const OpSpec& op, const std::vector<std::uint64_t>& counts, bool wanted, std::uint32_t n,
                         std::string_view name) {
  if (!wanted) {
    return;
  }
  if (counts.size() != n) {
    refuse(op, std::string(name) + " has " + std::to_string(counts.size()) + " entries, expected one for each of " +
                   std::to_string(n) + " members");
  }
  const std::uint64_t most = UINT64_MAX / 8 / n;
  for (const std::uint64_t count : counts) {
    if (count > most) {
      refuse(op, std::string(name) + " asks for " + std::to_string(count) + " elements, which no memory can hold");
    }
  }
}

inline void check_buffer(const OpSpec& op, const std::optional<Buffer>& buffer, std::uint64_t elements,
                         std::string_view name) {
  const std::uint64_t needed = elements * dtype_size(op.dtype);
  if (needed == 0) {
    return;
  }
  if (!buffer || buffer->data == nullptr) {
    refuse(op, "it needs a " + std::string(name) + " buffer of " + std::to_string(needed) + " bytes, and has none");
  }
  if (buffer->bytes < needed) {
    refuse(op, "its " + std::string(name) + " buffer has " + std::to_string(buffer->bytes) + " bytes, expected " +
                   std::to_string(needed));
  }
}

}  // namespace detail

/// Throws TransportError{SR_INVALID} for an op that is invalid in any group of `n`: unknown codes, a peer outside the
/// group, missing counts. Does not look at buffers.
inline void check(const OpSpec& op, std::uint32_t n) {
  const OpcodeTraits* traits = find_opcode(op.opcode);
  if (n == 0) {
    detail::refuse(op, "its group has no members");
  }
  if (traits == nullptr) {
    detail::refuse(op, "this opcode is not known; those from 1 to 14 are");
  }
  if (op.opcode != SR_OP_BARRIER && dtype_size(op.dtype) == 0) {
    detail::refuse(op, "dtype " + std::to_string(op.dtype) + " is not known; those from 1 to 10 are");
  }
  if (traits->reduces && !is_reduction(op.reduction)) {
    detail::refuse(op, "reduction " + std::to_string(op.reduction) +
                           " is not known; expected 1 (sum), 2 (product), 3 (min) or 4 (max)");
  }
  if ((traits->has_root || !traits->collective) && op.peer >= n) {
    detail::refuse(op, "its group has members 0 to " + std::to_string(n - 1));
  }
  if (op.count > UINT64_MAX / 8 / n) {
    detail::refuse(op, "no memory can hold so many elements of " + std::to_string(n) + " members");
  }
  detail::check_counts(op, op.send_counts, traits->has_send_counts, n, "send_counts");
  detail::check_counts(op, op.recv_counts, traits->has_recv_counts, n, "recv_counts");
}

/// Like `check`, and also checks what concerns member `rank`: buffers that are missing, too small, or overlap without
/// being in place, and a send to itself.
inline void validate(const OpSpec& op, std::uint32_t rank, std::uint32_t n) {
  check(op, n);
  if (!find_opcode(op.opcode)->collective && op.peer == rank) {
    detail::refuse(op, "a member cannot send to itself");
  }
  const std::uint64_t sent = send_elements(op, rank, n);
  const std::uint64_t received = recv_elements(op, rank, n);
  detail::check_buffer(op, op.send, sent, "send");
  detail::check_buffer(op, op.recv, received, "recv");
  if (sent == 0 || received == 0 || is_in_place(op, rank, n)) {
    return;
  }
  const unsigned char* send = detail::bytes_of(*op.send);
  const unsigned char* recv = detail::bytes_of(*op.recv);
  const std::uint64_t size = dtype_size(op.dtype);
  const std::less<const unsigned char*> before;
  if (before(send, recv + received * size) && before(recv, send + sent * size)) {
    detail::refuse(op, "its send and recv buffers overlap, and not as an op in place may");
  }
}

/// Validates ops that are prepared together, which are one collective, or sends and receives.
inline void validate(std::span<const OpSpec> ops, std::uint32_t rank, std::uint32_t n) {
  if (ops.empty()) {
    throw TransportError(SR_INVALID, "nothing was given to prepare");
  }
  for (const OpSpec& op : ops) {
    validate(op, rank, n);
    if (ops.size() > 1 && find_opcode(op.opcode)->collective) {
      detail::refuse(op, "it is one of " + std::to_string(ops.size()) +
                             " ops that are prepared as one; only sends and receives can be");
    }
  }
}

}  // namespace shardrun::sdk
