#pragma once

#include <mpi.h>
#include <shardrun/sdk/transport/group.hpp>

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

#include "transports/mpi/arrivals.h"
#include "transports/mpi/requests.h"
#include "transports/mpi/shared_comm.h"

namespace shardrun::mpi_transport {

/// The communicator of a prepared collective, and the collective's number in its group.
struct CollectiveComm {
  MPI_Comm comm = MPI_COMM_NULL;
  std::size_t index = 0;
  SharedComm* shared = nullptr;  ///< set if other ops use the communicator, too
  std::uint64_t number = 0;
};

/// The time limits of a running op.
struct TimeLimit {
  sdk::Deadline deadline;
  sdk::Deadline report_at;   ///< when to report in Arrivals that the op is late
  std::uint64_t number = 0;  ///< the collective's number in Arrivals; 0: none
};

/// A group of ranks with its own communicator.
class MpiGroup final : public sdk::Group {
 public:
  /// Waits for the other members. `wire_bytes` outlives this object. `key`: a prefix in the store for this group alone.
  /// `key` and `comms` (the number of communicators for concurrent collectives) are the same on all members.
  MpiGroup(const sdk::Config& config, const sdk::GroupSpec& spec, const std::string& key, std::size_t comms,
           std::atomic<std::uint64_t>& wire_bytes);

  ~MpiGroup() override;

  [[nodiscard]] std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, sdk::Deadline deadline) override;
  void abort(std::string_view reason) noexcept override { fail({SR_ABORTED, std::string(reason)}); }
  [[nodiscard]] std::optional<sdk::TransportError> error() override;

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }
  [[nodiscard]] Peer peer(std::uint32_t member) const { return {spec_.name_of(member), spec_.members[member]}; }

  // Fails the group. Any thread may call it. Only the first failure is kept.
  void fail(const sdk::TransportError& failure) noexcept;
  /// Throws the group's failure, if it has failed.
  void check();
  [[nodiscard]] bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Checks once whether the requests are complete. A failure, or a passed deadline, fails the group.
  [[nodiscard]] bool test(Requests& requests, const TimeLimit& limit, const std::string& what);
  /// Checks until the requests are complete or `until` has passed.
  [[nodiscard]] bool wait(Requests& requests, const TimeLimit& limit, sdk::Deadline until, const std::string& what);
  /// Returns the first communicator that is free on every member, or else one that all further ops share. Every member
  /// calls it with MPI's lock held, after all have agreed on an op.
  [[nodiscard]] CollectiveComm acquire_comm();
  void release_comm(const CollectiveComm& comm) noexcept;
  [[nodiscard]] Arrivals& arrivals() noexcept { return arrivals_; }
  void count(std::uint64_t bytes) noexcept { wire_bytes_.fetch_add(bytes, std::memory_order_relaxed); }

 private:
  void await_members();
  void connect();
  void agree(const sdk::OpSpec& op, sdk::Deadline deadline);
  void require_in_time(const Requests& requests, const TimeLimit& limit, const std::string& what);
  [[nodiscard]] sdk::AwaitedRanks awaited(const Requests& requests, const TimeLimit& limit);

  sdk::GroupSpec spec_;
  sdk::TransportHost host_;
  std::atomic<std::uint64_t>& wire_bytes_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::vector<MPI_Comm> comms_;
  std::vector<std::uint8_t> free_comms_;  ///< by index; guarded by MPI's lock
  std::optional<SharedComm> shared_comm_;
  std::uint64_t collectives_ = 0;
  Arrivals arrivals_;
  std::mutex mutex_;  ///< guards `failure_`
  std::optional<sdk::TransportError> failure_;
  std::atomic<bool> failed_ = false;
};

/// An op of MPI. It starts requests, and ends when they are complete.
class MpiOp : public sdk::Op {
 public:
  MpiOp(MpiGroup& group, std::string what, bool is_collective);
  ~MpiOp() override;

  void start(void* queue, sdk::Deadline deadline) final;
  [[nodiscard]] bool test() final;
  [[nodiscard]] bool wait(sdk::Deadline deadline) final;

 protected:
  [[nodiscard]] MpiGroup& group() noexcept { return group_; }
  [[nodiscard]] const std::string& what() const noexcept { return what_; }
  [[nodiscard]] bool is_in_flight() const noexcept { return state_ == State::in_flight; }
  /// The op's requests. An op whose `launch` called expect_more() adds those that it starts later.
  [[nodiscard]] Requests& requests() noexcept { return requests_; }

 private:
  enum class State { idle, in_flight, complete };

  /// REQUIRES: MPI's lock is held.
  virtual void launch(Requests& requests) = 0;
  virtual void finish() {}
  void conclude();

  MpiGroup& group_;
  std::string what_;
  bool is_collective_;
  State state_ = State::idle;
  TimeLimit limit_;
  Requests requests_;
};

/// Makes an op. Every member calls it, after all have agreed on the op.
[[nodiscard]] std::unique_ptr<sdk::Op> make_collective(MpiGroup& group, const sdk::OpSpec& op);
[[nodiscard]] std::unique_ptr<sdk::Op> make_batch(MpiGroup& group, std::span<const sdk::OpSpec> ops);

/// The tag of the agreement's messages. Tags of batches are larger.
inline constexpr int agreement_tag = 0;
inline constexpr int first_batch_tag = 1;

}  // namespace shardrun::mpi_transport
