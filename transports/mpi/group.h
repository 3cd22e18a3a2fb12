#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <shardrun/sdk/transport/group.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {

/// Announces to the other members that this one starts an op. It is an all_reduce of the minimum of `mine`.
struct Announcement {
  std::array<std::uint64_t, 2> mine = {};  ///< the op's number in its group, and its complement
  std::array<std::uint64_t, 2> least = {};
  MPI_Request request = MPI_REQUEST_NULL;
};

/// An op whose communicator is shared with other ops.
class SharedCommOp {
 public:
  SharedCommOp() = default;
  SharedCommOp(const SharedCommOp&) = delete;
  SharedCommOp& operator=(const SharedCommOp&) = delete;
  virtual ~SharedCommOp() = default;

  /// Called once all members have started this op as their next one. Makes the MPI calls. Throws TransportError.
  virtual void begin() = 0;
  /// Fails the group, so that neither this op nor any later one begins. Called if the op cannot begin.
  virtual void fail(const sdk::TransportError& failure) noexcept = 0;
  [[nodiscard]] virtual bool is_over() noexcept = 0;  ///< whether the group has failed
};

/// One communicator for many ops. MPI pairs collectives on a communicator by the order of their calls alone. So each
/// start is announced on a second communicator. An op begins when all members have announced it, in the order of the
/// starts, so MPI never pairs different ops. REQUIRES: MPI's lock is held in every call.
class SharedComm {
 public:
  /// Every member must construct it.
  explicit SharedComm(MPI_Comm group);
  SharedComm(const SharedComm&) = delete;
  SharedComm& operator=(const SharedComm&) = delete;
  ~SharedComm();

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// A later `advance`, on any thread, begins the op. `op` and `announcement` must live until then, or until `leave`.
  void start(SharedCommOp& op, Announcement& announcement);
  void advance() noexcept;
  /// Removes the op, whether it has begun or not. Keeps an unfinished announcement for MPI.
  void leave(const SharedCommOp& op, std::unique_ptr<Announcement> announcement);

 private:
  MPI_Comm announcements_ = MPI_COMM_NULL;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<std::pair<SharedCommOp*, Announcement*>> started_;  ///< started but not begun, in order
  bool has_unanswered_ = false;  ///< an op left before all had announced it; `announcements_` is not freed
};

/// Another member, for messages.
struct Peer {
  std::string name;
  std::uint32_t rank = 0;  ///< number in the world
};

/// Requests in flight that are completed together. Declare them after their buffers, so that they are destroyed first.
/// If requests are incomplete then, the destructor abandons MPI, so that MPI no longer accesses the buffers.
class Requests {
 public:
  explicit Requests(std::string what) : what_(std::move(what)) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  /// Adds a request, for an MPI call to fill in. Errors name `peer` as awaited. The reference is valid until the next
  /// `add`. REQUIRES: MPI's lock is held, from the first `add` to the last.
  [[nodiscard]] MPI_Request& add(const std::optional<Peer>& peer = std::nullopt);
  /// Says whether more requests will be added. While more are expected, test() returns false.
  void expect_more(bool expected) noexcept { expects_more_ = expected; }
  [[nodiscard]] bool expects_more() const noexcept { return expects_more_; }
  /// Removes all requests, before the next run. REQUIRES: nothing is in flight.
  void clear() noexcept;

  /// Checks once whether all requests are complete. Throws TransportError if MPI fails or was abandoned.
  [[nodiscard]] bool test();
  /// Checks until all requests are complete or `over()` is true. Returns whether they are complete. `over` may throw.
  [[nodiscard]] bool wait(const std::function<bool()>& over);
  /// The known peers of the incomplete requests.
  [[nodiscard]] sdk::AwaitedRanks awaited() const;

 private:
  std::string what_;
  std::vector<MPI_Request> requests_;
  std::vector<std::optional<Peer>> peers_;
  std::vector<int> indices_;  ///< those that MPI reports as complete
  std::size_t used_ = 0;
  bool expects_more_ = false;
};

/// Finds the members that are late for a collective, which MPI does not report. Members number the collectives that
/// they start; the order is the same on all. A member that has waited for half of an op's time reports the op's number
/// in the job's store. A member whose op is past its deadline reads the others' reports. So a job without delays never
/// uses the store.
class Arrivals {
 public:
  /// `key`: a prefix in the store for this group, the same on all members.
  Arrivals(const sdk::TransportHost& host, std::string key, std::uint32_t rank, std::uint32_t size);

  /// The number of the collective that starts now, from 1. REQUIRES: MPI's lock is held.
  [[nodiscard]] std::uint64_t next() noexcept { return ++started_; }

  // Any thread may call the following.
  /// Reports that this member has started that collective and waits.
  void report(std::uint64_t number) noexcept;
  /// The members that have not reported the start of that collective. Waits a short while for reports. A member that
  /// completed its part early, as a broadcast's root does, can count as missing, too. Empty if the store fails.
  [[nodiscard]] std::vector<std::uint32_t> missing(std::uint64_t number) noexcept;

 private:
  struct Report {
    std::uint64_t number = 0;
    std::uint64_t read = 0;  ///< number of reports read so far
    bool is_read = false;
  };

  [[nodiscard]] std::string key_of(std::uint32_t member, std::uint64_t index) const;
  /// Reads the member's next report. Returns false if there is none.
  [[nodiscard]] bool read_reports(std::uint32_t member);

  sdk::TransportHost host_;
  std::string key_;
  std::uint32_t rank_;
  std::uint64_t started_ = 0;
  std::mutex mutex_;  ///< guards the members below
  std::uint64_t written_ = 0;
  std::vector<Report> reports_;  ///< by member
};

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
  sdk::Deadline report_at;   ///< when to report in Arrivals that this member waits
  std::uint64_t number = 0;  ///< the collective's number in Arrivals; 0: none
};

/// A group of ranks with its own communicator.
class MpiGroup final : public sdk::Group {
 public:
  /// Waits for the other members. Throws TransportError. `wire_bytes` outlives this object. `key`: the group's prefix
  /// in the store. `comms`: communicators for concurrent collectives. `key` and `comms` are the same on all members.
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

  /// Fails the group. Any thread may call it. Only the first failure is kept.
  void fail(const sdk::TransportError& failure) noexcept;
  /// Throws the group's failure, if it has failed.
  void check();
  [[nodiscard]] bool has_failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  /// Checks once whether the requests are complete. A failure, or a passed deadline, fails the group and is thrown.
  [[nodiscard]] bool test(Requests& requests, const TimeLimit& limit, const std::string& what);
  /// Like test(), until the requests are complete or `until` has passed. Returns whether they are complete.
  [[nodiscard]] bool wait(Requests& requests, const TimeLimit& limit, sdk::Deadline until, const std::string& what);
  /// Returns the first communicator that is free on every member, or else one that all further ops share. Every member
  /// calls it with MPI's lock held, after all have agreed on an op. Throws TransportError.
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
  /// The op's requests. An op whose launch() called expect_more() adds the requests that it starts later.
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

/// Makes a collective. Every member calls it, after all have agreed on the op. Throws TransportError.
[[nodiscard]] std::unique_ptr<sdk::Op> make_collective(MpiGroup& group, const sdk::OpSpec& op);
[[nodiscard]] std::unique_ptr<sdk::Op> make_batch(MpiGroup& group, std::span<const sdk::OpSpec> ops);

/// The tag of the agreement's messages. Tags of batches are larger.
inline constexpr int agreement_tag = 0;
inline constexpr int first_batch_tag = 1;

}  // namespace shardrun::mpi_transport
