#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {

/// Tells the other members that this one starts an op, by an all_reduce of the minimum of `mine`.
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

  /// Called once all members have started this op as their next one. It makes the MPI calls. May throw TransportError.
  virtual void begin() = 0;
  /// Called when the group fails: neither this op nor any later one begins.
  virtual void fail(const sdk::TransportError& failure) noexcept = 0;
  [[nodiscard]] virtual bool is_over() noexcept = 0;  ///< whether the group has failed
};

/// One communicator for many ops. MPI pairs collectives on a communicator by the order of their calls alone. So each
/// start is announced on a second communicator. An op begins when all members have announced it, in the order of the
/// starts, so MPI never pairs different ops. REQUIRES: MPI's lock is held in every call.
class SharedComm final : public Progressable {
 public:
  /// Every member must construct it.
  explicit SharedComm(MPI_Comm group);
  ~SharedComm() override;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// A later `advance`, on any thread, begins the op. `op` and `announcement` must live until then, or until `leave`.
  void start(SharedCommOp& op, Announcement& announcement);
  void advance() noexcept override;
  /// Removes the op, whether it has begun or not. Keeps an unfinished announcement for MPI.
  void leave(const SharedCommOp& op, std::unique_ptr<Announcement> announcement);

 private:
  struct Started {
    SharedCommOp* op;
    Announcement* announcement;
  };

  MPI_Comm announcements_ = MPI_COMM_NULL;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Started> started_;  ///< started but not begun, in order
  bool has_unanswered_ = false;  ///< an op that has left had an unanswered announcement: keep the communicator
};

}  // namespace shardrun::mpi_transport
