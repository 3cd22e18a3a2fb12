#pragma once

#include <mpi.h>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transports/mpi/requests.h"
#include "transports/mpi/roll_call.h"
#include "transports/mpi/shared_lane.h"

namespace shardrun::mpi_transport {

/// The communicator of a collective that is prepared, and its number among all of its group.
struct Lane {
  MPI_Comm comm = MPI_COMM_NULL;
  std::size_t place = 0;
  SharedLane* shared = nullptr;  ///< where it is other ops' as well
  std::uint64_t number = 0;
};

/// What an op under way may take.
struct Term {
  std::int64_t deadline = INT64_MAX;
  std::int64_t half = INT64_MAX;  ///< of that time is over
  std::uint64_t turn = 0;         ///< of a collective, by the roll call; 0: of others
};

/// Ranks with a communicator of their own.
class MpiGroup final : public sdk::Group {
 public:
  /// Waits for the other members. `wire_bytes` outlives this.
  /// `key` is of the store, for this group alone; that and `lanes` are the same on all members.
  MpiGroup(const sdk::Config& config, const sdk::GroupSpec& spec, const std::string& key, std::size_t lanes,
           std::atomic<std::uint64_t>& wire_bytes);

  ~MpiGroup() override;

  [[nodiscard]] std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override { fail({SR_ABORTED, std::string(reason)}); }
  [[nodiscard]] std::optional<sdk::TransportError> error() override;

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] Peer peer(std::uint32_t member) const { return {spec_.name_of(member), spec_.members[member]}; }

  // Any thread. The first failure counts.
  void fail(const sdk::TransportError& failure) noexcept;
  /// Throws why the group failed, if it has.
  void check();
  [[nodiscard]] bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Looks once whether requests are complete; what fails fails the group, and past `deadline` they do.
  [[nodiscard]] bool test(Requests& requests, const Term& term, const std::string& what);
  /// The same, until they are complete or `until` has passed.
  [[nodiscard]] bool wait(Requests& requests, const Term& term, std::int64_t until, const std::string& what);
  /// Every member calls it, once all have agreed on an op, and with MPI's lock held: the first communicator that no op
  /// of theirs is on, or the one that all share which are too many.
  [[nodiscard]] Lane take_lane();
  void leave_lane(const Lane& lane) noexcept;
  [[nodiscard]] RollCall& roll_call() noexcept { return roll_call_; }
  void count(std::uint64_t bytes) noexcept { wire_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  void meet();
  void connect();
  void agree(const sdk::OpSpec& op, std::int64_t deadline);
  void require_in_time(const Requests& requests, const Term& term, const std::string& what);
  [[nodiscard]] sdk::AwaitedRanks awaited(const Requests& requests, const Term& term);

  sdk::GroupSpec spec_;
  sdk::TransportHost host_;
  std::atomic<std::uint64_t>& wire_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> lanes_;
  std::vector<std::uint8_t> free_lanes_;  ///< by lane; under MPI's lock
  std::optional<SharedLane> shared_lane_;
  std::uint64_t collectives_ = 0;
  RollCall roll_call_;
  std::mutex mutex_;  ///< of `failure_`
  std::optional<sdk::TransportError> failure_;
  std::atomic<bool> failed_ = false;
};

/// An op of MPI: something that starts requests, and something that is done when they are complete.
class MpiOp : public sdk::Op {
 public:
  MpiOp(MpiGroup& group, std::string what, bool is_collective);
  ~MpiOp() override;

  void start(void* queue, std::int64_t deadline) final;
  [[nodiscard]] bool test() final;
  [[nodiscard]] bool wait(std::int64_t deadline) final;

 protected:
  [[nodiscard]] MpiGroup& group() noexcept { return group_; }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }
  [[nodiscard]] bool is_under_way() const noexcept { return state_ == State::under_way; }
  /// Of what `launch` has left for later.
  [[nodiscard]] Requests& requests() noexcept { return requests_; }

 private:
  enum class State { idle, under_way, complete };

  /// With MPI's lock held.
  virtual void launch(Requests& requests) = 0;
  virtual void finish() {}
  void conclude();

  MpiGroup& group_;
  std::string what_;
  bool is_collective_;
  State state_ = State::idle;
  Term term_;
  Requests requests_;
};

/// Collective: every member calls it, after all have agreed on the op.
[[nodiscard]] std::unique_ptr<sdk::Op> make_collective(MpiGroup& group, const sdk::OpSpec& op);
[[nodiscard]] std::unique_ptr<sdk::Op> make_batch(MpiGroup& group, std::span<const sdk::OpSpec> ops);

/// Of the agreement; those of batches are larger.
inline constexpr int agreement_tag = 0;
inline constexpr int first_batch_tag = 1;

}  // namespace shardrun::mpi_transport
