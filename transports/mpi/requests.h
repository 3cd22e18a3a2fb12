#pragma once

#include <mpi.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transports/mpi/library.h"

namespace shardrun::mpi_transport {

/// Another member, for messages.
struct Peer {
  std::string name;
  std::uint32_t rank = 0;  ///< of the world
};

/// Transfers that are under way together. Whoever owns their buffers keeps this before them: where it ends and they are
/// not complete, MPI is given up, so that it touches nothing of them any more.
class Requests {
 public:
  explicit Requests(std::string what) : what_(std::move(what)) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  /// With MPI's lock held, from the first to the last: one more request to be filled in by a call, told as awaiting
  /// `peer`, where it is of somebody in particular. References hold until the next.
  [[nodiscard]] MPI_Request& add(const std::optional<Peer>& peer = std::nullopt);
  /// More will be added, from now on or no longer: until then they are not complete.
  void expect_more(bool expected) noexcept { expects_more_ = expected; }
  [[nodiscard]] bool expects_more() const noexcept { return expects_more_; }
  /// All that was added goes, for the next round: nothing is under way.
  void clear() noexcept;
  /// Makes room, so that adding so many allocates nothing.
  void reserve(std::size_t requests);

  /// Whether all are complete, looking once. Throws TransportError where MPI says that one failed.
  [[nodiscard]] bool test();
  /// Looks until all are complete or `over` says so, and gives way meanwhile. `over` may throw.
  [[nodiscard]] bool wait(const std::function<bool()>& over);
  /// Of those that are not complete, where they are of somebody.
  [[nodiscard]] sdk::AwaitedRanks awaited() const;

 private:
  std::string what_;
  std::vector<MPI_Request> requests_;
  std::vector<std::optional<Peer>> peers_;
  std::vector<int> indices_;  ///< what MPI says is complete
  std::size_t used_ = 0;
  bool expects_more_ = false;
};

}  // namespace shardrun::mpi_transport
