#pragma once

/// Whether the members of a group mean the same op. What each has prepared is compared before anything is moved, so
/// that a mismatch is an error on all of them and names both calls.

#include <shardrun/sdk/op.hpp>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>

namespace shardrun::sdk {

/// What one member tells another of a collective. Plain bytes, of a size that does not depend on the op.
struct Claim {
  std::uint32_t opcode = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reduction = 0;
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  ///< of counts that all members share
  std::uint64_t gives = 0;        ///< elements from the one who claims to the one who reads
  std::uint64_t takes = 0;
  char text[184] = {};  ///< describe(op), cut to fit
};

/// What member `rank` tells member `to`. REQUIRES: check(op, n) passed.
[[nodiscard]] inline Claim claim_of(const OpSpec& op, std::uint32_t rank, std::uint32_t to) {
  const OpcodeTraits& traits = *find_opcode(op.opcode);
  Claim claim;
  claim.opcode = op.opcode;
  claim.dtype = op.opcode == SR_OP_BARRIER ? 0 : op.dtype;
  claim.reduction = traits.reduces ? op.reduction : 0;
  claim.peer = traits.has_root ? op.peer : 0;
  claim.id = op.id;
  claim.count = traits.has_recv_counts || op.opcode == SR_OP_BARRIER ? 0 : op.count;
  if (traits.has_send_counts) {
    claim.gives = send_block(op, rank, to).count;
    claim.takes = recv_block(op, rank, to).count;
  } else {
    claim.counts_hash = 14695981039346656037U;
    for (const std::uint64_t count : op.recv_counts) {
      claim.counts_hash = (claim.counts_hash ^ count) * 1099511628211U;
    }
  }
  const std::string text = describe(op);
  std::copy_n(text.data(), std::min(text.size(), sizeof(claim.text) - 1), claim.text);
  return claim;
}

/// Why the op of this member and what member `from` claims are not the same op, or nothing.
[[nodiscard]] inline std::optional<std::string> mismatch(const OpSpec& op, std::uint32_t rank, std::uint32_t from,
                                                         const Claim& claim) {
  const Claim own = claim_of(op, rank, from);
  const bool same = own.opcode == claim.opcode && own.dtype == claim.dtype && own.reduction == claim.reduction &&
                    own.peer == claim.peer && own.id == claim.id && own.count == claim.count &&
                    own.counts_hash == claim.counts_hash && own.gives == claim.takes && own.takes == claim.gives;
  if (same) {
    return std::nullopt;
  }
  std::string why = "members do not mean the same op: member " + std::to_string(rank) + " has " + describe(op) +
                    " (id " + std::to_string(own.id) + "), member " + std::to_string(from) + " has " +
                    std::string(claim.text, ::strnlen(claim.text, sizeof(claim.text))) + " (id " +
                    std::to_string(claim.id) + ")";
  if (own.counts_hash != claim.counts_hash) {
    why += ", with other counts";
  }
  if (own.gives != claim.takes || own.takes != claim.gives) {
    why += ", where they exchange " + std::to_string(own.gives) + " and " + std::to_string(own.takes) +
           " elements on the one side, " + std::to_string(claim.takes) + " and " + std::to_string(claim.gives) +
           " on the other";
  }
  return why;
}

}  // namespace shardrun::sdk
