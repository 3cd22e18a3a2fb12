#pragma once

#include <mpi.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {

/// That a member starts an op now, told to the others: the least and the greatest of what members tell are found.
struct Announcement {
  std::array<std::uint64_t, 2> mine = {};  ///< the op's number in its group, and its complement
  std::array<std::uint64_t, 2> least = {};
  MPI_Request request = MPI_REQUEST_NULL;
};

/// An op whose communicator others use as well.
class Sharer {
 public:
  Sharer() = default;
  Sharer(const Sharer&) = delete;
  Sharer& operator=(const Sharer&) = delete;
  virtual ~Sharer() = default;

  /// All members have started this op as their next: it may give MPI what it moves. May throw TransportError.
  virtual void begin() = 0;
  /// The group fails: this op is not begun, nor is any after it.
  virtual void fail(const sdk::TransportError& failure) noexcept = 0;
  [[nodiscard]] virtual bool is_over() noexcept = 0;  ///< the group has failed
};

/// One communicator for many ops, which MPI pairs by the order in which members give them to it, whatever they are.
/// So each start is announced on a second communicator, and an op begins when all members have announced it, in the
/// order of the starts: MPI never pairs ops that are not the same. Any call with MPI's lock held.
class SharedLane final : public Sequel {
 public:
  /// Every member makes it.
  explicit SharedLane(MPI_Comm group);
  ~SharedLane() override;

  [[nodiscard]] MPI_Comm comm() const noexcept { return comm_; }

  /// It is begun by a later `advance`, which may come from any thread; both outlive that, or `leave` comes before.
  void start(Sharer& op, Announcement& announcement);
  void advance() noexcept override;
  /// The op goes, begun or not. What was announced of it and is not answered is kept for MPI.
  void leave(const Sharer& op, std::unique_ptr<Announcement> announcement);

 private:
  struct Started {
    Sharer* op;
    Announcement* announcement;
  };

  MPI_Comm announcements_ = MPI_COMM_NULL;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<Started> started_;  ///< and not begun, in order
  bool has_unanswered_ = false;  ///< of an op that has left: its communicator stays
};

}  // namespace shardrun::mpi_transport
