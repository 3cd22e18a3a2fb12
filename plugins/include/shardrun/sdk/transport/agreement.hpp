#pragma once

/// How a group's members agree on an op. They compare what they have prepared before any data moves. So a mismatch is
/// an error on all of them. The error names both ops or, if only other members disagree, those members.

#include <shardrun/sdk/transport/op.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::sdk {

/// One member's description of a collective, for one other member. Plain bytes, whose size does not depend on the op.
struct Claim {
  std::uint32_t opcode = 0;
  std::uint32_t dtype = 0;
  std::uint32_t reduction = 0;
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  std::uint64_t count = 0;
  std::uint64_t counts_hash = 0;  ///< hash of the counts that all members share
  std::uint64_t sends = 0;        ///< elements from the claiming member to the reading one
  std::uint64_t receives = 0;
  char text[184] = {};  ///< describe(op), cut to fit
};

/// The claim of member `rank` for member `to`. REQUIRES: check(op, n) passed.
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
    claim.sends = send_block(op, rank, to).count;
    claim.receives = recv_block(op, rank, to).count;
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

/// Why this member's op and the claim of member `from` do not match; nothing if they match.
[[nodiscard]] inline std::optional<std::string> mismatch(const OpSpec& op, std::uint32_t rank, std::uint32_t from,
                                                         const Claim& claim) {
  const Claim own = claim_of(op, rank, from);
  const bool same = own.opcode == claim.opcode && own.dtype == claim.dtype && own.reduction == claim.reduction &&
                    own.peer == claim.peer && own.id == claim.id && own.count == claim.count &&
                    own.counts_hash == claim.counts_hash && own.sends == claim.receives && own.receives == claim.sends;
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
  if (own.sends != claim.receives || own.receives != claim.sends) {
    why += ", where they exchange " + std::to_string(own.sends) + " and " + std::to_string(own.receives) +
           " elements on the one side, " + std::to_string(claim.receives) + " and " + std::to_string(claim.sends) +
           " on the other";
  }
  return why;
}

/// The exchange by which all members agree. In each of two rounds a member sends a message to every other member and
/// receives one from it. In the first round they exchange claims. In the second they tell each other whether they found
/// a mismatch, because a third member cannot see a mismatch between two others. Without this round it would wait for an
/// op that the two refuse.
class Agreement {
 public:
  static constexpr std::uint32_t rounds = 2;

  /// REQUIRES: check(op, n) passed. The op outlives this.
  Agreement(const OpSpec& op, std::uint32_t rank, std::uint32_t n)
      : op_(op), rank_(rank), mine_(n), theirs_(n), verdicts_(n) {
    for (std::uint32_t peer = 0; peer < n; ++peer) {
      if (peer != rank) {
        mine_[peer] = claim_of(op, rank, peer);
      }
    }
  }

  [[nodiscard]] std::size_t bytes(std::uint32_t round) const noexcept { return round == 0 ? sizeof(Claim) : 1; }
  [[nodiscard]] void* outgoing(std::uint32_t round, std::uint32_t to) noexcept {
    return round == 0 ? static_cast<void*>(&mine_[to]) : &verdicts_[rank_];
  }
  [[nodiscard]] void* incoming(std::uint32_t round, std::uint32_t from) noexcept {
    return round == 0 ? static_cast<void*>(&theirs_[from]) : &verdicts_[from];
  }

  /// Evaluates the messages received. Call it after each round.
  void conclude(std::uint32_t round) {
    if (round == 0) {
      difference_ = own_difference();
      verdicts_[rank_] = difference_ ? 1 : 0;
    } else if (!difference_) {
      difference_ = difference_of_others();
    }
  }

  /// After the last round: why the ops do not match, set on all members or on none.
  [[nodiscard]] const std::optional<std::string>& difference() const noexcept { return difference_; }

 private:
  [[nodiscard]] std::optional<std::string> own_difference() const {
    for (std::uint32_t peer = 0; peer < theirs_.size(); ++peer) {
      if (peer == rank_) {
        continue;
      }
      if (auto why = mismatch(op_, rank_, peer, theirs_[peer])) {
        return why;
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<std::string> difference_of_others() const {
    std::string members;
    for (std::uint32_t peer = 0; peer < verdicts_.size(); ++peer) {
      if (verdicts_[peer] != 0) {
        members += (members.empty() ? "" : ", ") + std::to_string(peer);
      }
    }
    if (members.empty()) {
      return std::nullopt;
    }
    return "members " + members + " do not mean the same op; member " + std::to_string(rank_) + " has " +
           describe(op_) + " (id " + std::to_string(op_.id) + ")";
  }

  const OpSpec& op_;
  std::uint32_t rank_;
  std::vector<Claim> mine_;  ///< one for each member
  std::vector<Claim> theirs_;
  std::vector<std::uint8_t> verdicts_;  ///< by member: 1 if it found a mismatch
  std::optional<std::string> difference_;
};

}  // namespace shardrun::sdk
