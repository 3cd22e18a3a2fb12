#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {

/// Tells the other members that this one starts an op: an all_reduce of the minimum of `mine`.
struct Announcement {
  std::array<std::uint64_t, 2> mine = {};  ///< the op's number in its group, and its complement
  std::array<std::uint64_t, 2> least = {};
  MPI_Request request = MPI_REQUEST_NULL;
};

/// An op whose communicator other ops use too.
class SharedCommOp {
 public:
  SharedCommOp() = default;
  SharedCommOp(const SharedCommOp&) = delete;
  SharedCommOp& operator=(const SharedCommOp&) = delete;
  virtual ~SharedCommOp() = default;

  /// Called once all members have started this op as their next: it may start its MPI calls. May throw TransportError.
  virtual void begin() = 0;
  /// The group fails: neither this op nor any after it begins.
  virtual void fail(const sdk::TransportError& failure) noexcept = 0;
  [[nodiscard]] virtual bool is_over() noexcept = 0;  ///< the group has failed
};

/// One communicator for many ops. MPI pairs collectives on it by the order of their calls alone. So each start is
/// announced on a second communicator. An op begins when all members have announced it, in the order of the starts, so
/// MPI never pairs different ops. REQUIRES: every call holds MPI's lock.
class SharedComm final : public Progressable {
 public:
  /// Every member constructs it.
  explicit SharedComm(MPI_Comm group);
  ~SharedComm() override;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// A later `advance`, on any thread, begins the op. `op` and `announcement` outlive that, or `leave` comes first.
  void start(SharedCommOp& op, Announcement& announcement);
  void advance() noexcept override;
  /// Removes the op, begun or not. Keeps an unfinished announcement for MPI.
  void leave(const SharedCommOp& op, std::unique_ptr<Announcement> announcement);

 private:
  struct Started {
    SharedCommOp* op;
    Announcement* announcement;
  };

  MPI_Comm announcements_ = MPI_COMM_NULL;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Started> started_;  ///< not begun yet, in order
  bool has_unanswered_ = false;  ///< for an op that has left: keep the communicator
};

}  // namespace shardrun::mpi_transport
