#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transports/chaos/group.h"

namespace shardrun::chaos_transport {

/// A prepared op or batch of a rank with faults.
class FaultyOp {
 public:
  /// `others`, `lost`: handles of the inner transport's ops, or 0. Transfers with the lost member are a separate op.
  FaultyOp(FaultyGroup& group, std::vector<sdk::OpSpec> specs, std::uint64_t others, std::uint64_t lost);
  FaultyOp(const FaultyOp&) = delete;
  FaultyOp& operator=(const FaultyOp&) = delete;

  [[nodiscard]] std::int32_t start(void* queue, sdk::Deadline deadline, sr_error* error);
  [[nodiscard]] std::int32_t test(sr_error* error);
  [[nodiscard]] std::int32_t wait(sdk::Deadline deadline, sr_error* error);
  [[nodiscard]] std::int32_t free(sr_error* error);
  /// When the latest run was in progress. It begins when the inner transport's ops were started, which is after this
  /// op's delay. REQUIRES: it is complete.
  [[nodiscard]] sdk::OpTimes times() const;

  /// Starts a held op that is due. Returns when to call this again, or never. REQUIRES: the group's lock is held.
  [[nodiscard]] sdk::Deadline advance(sdk::Deadline now);

 private:
  enum class State {
    idle,     ///< not started since its last run completed
    late,     ///< held back until `due_`
    stalled,  ///< held back until the group fails
    started,  ///< started, except transfers with the lost member
    complete
  };

  [[nodiscard]] std::string what() const { return sdk::describe(specs_.front()); }
  [[nodiscard]] std::int32_t start_inner(sr_error* error);
  /// The status of the parts that were started. It is also PENDING while the op waits for the lost member.
  [[nodiscard]] std::int32_t test_started(sr_error* error);
  [[nodiscard]] std::int32_t wait_started(sdk::Deadline until, sr_error* error);
  [[nodiscard]] std::int32_t conclude(std::int32_t status, sr_error* error);
  [[nodiscard]] bool awaits_lost() const;
  /// Whether a wait happens in this transport instead of the inner one.
  [[nodiscard]] bool waits_here() const;
  void hold();
  void unhold();
  void corrupt();
  [[nodiscard]] std::vector<std::uint64_t> begun() const;

  FaultyGroup& group_;
  std::vector<sdk::OpSpec> specs_;
  std::uint64_t others_;
  std::uint64_t lost_;
  State state_ = State::idle;
  bool loses_ = false;     ///< in this run it loses transfers with a member
  bool corrupts_ = false;  ///< in this run its result gets corrupted
  void* queue_ = nullptr;
  sdk::Deadline deadline_;
  sdk::Deadline due_;
  std::int64_t begun_ = 0;  ///< when the inner transport's ops were started
  std::int64_t ended_ = 0;  ///< when it was found complete
};

}  // namespace shardrun::chaos_transport
