#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "transports/chaos/group.h"

namespace shardrun::chaos {

/// A prepared op or batch of a disturbed rank.
class DisturbedOp {
 public:
  /// `others`, `lost`: handles of the inner transport's ops, 0 for none; what goes to or comes from the member that is
  /// lost is an op apart.
  DisturbedOp(DisturbedGroup& group, std::vector<sdk::OpSpec> specs, std::uint64_t others, std::uint64_t lost);
  DisturbedOp(const DisturbedOp&) = delete;
  DisturbedOp& operator=(const DisturbedOp&) = delete;

  [[nodiscard]] std::int32_t start(void* queue, std::int64_t deadline, sr_error* error);
  [[nodiscard]] std::int32_t test(sr_error* error);
  [[nodiscard]] std::int32_t wait(std::int64_t deadline, sr_error* error);
  [[nodiscard]] std::int32_t free(sr_error* error);

  /// Under the group's lock, of one that is held back. When it is to be looked at again; INT64_MAX: no more.
  [[nodiscard]] std::int64_t attend(std::int64_t now);

 private:
  enum class State {
    idle,     ///< not started since it was complete
    late,     ///< until `due_`
    stalled,  ///< until the group fails
    started,  ///< but for what is lost
    complete
  };

  [[nodiscard]] std::string what() const { return sdk::describe(specs_.front()); }
  [[nodiscard]] std::int32_t start_inner(sr_error* error);
  /// Of what was started; PENDING also where it waits for what is lost.
  [[nodiscard]] std::int32_t test_started(sr_error* error);
  [[nodiscard]] std::int32_t wait_started(std::int64_t until, sr_error* error);
  [[nodiscard]] std::int32_t conclude(std::int32_t status, sr_error* error);
  [[nodiscard]] bool awaits_lost() const;
  /// Whether a wait for it is no wait of the inner transport.
  [[nodiscard]] bool waits_here() const;
  void hold();
  void let_go();
  void corrupt();
  [[nodiscard]] std::vector<std::uint64_t> begun() const;

  DisturbedGroup& group_;
  std::vector<sdk::OpSpec> specs_;
  std::uint64_t others_;
  std::uint64_t lost_;
  State state_ = State::idle;
  bool loses_ = false;     ///< in this run
  bool corrupts_ = false;  ///< in this run
  void* queue_ = nullptr;
  std::int64_t deadline_ = INT64_MAX;
  std::int64_t due_ = 0;
};

}  // namespace shardrun::chaos
