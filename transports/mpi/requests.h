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
  std::uint32_t rank = 0;  ///< number in the world
};

/// Requests in flight that are completed together. Declare it after their buffers, so that it is destroyed first: if
/// requests are incomplete then, it abandons MPI, so that MPI no longer accesses the buffers.
class Requests {
 public:
  explicit Requests(std::string what) : what_(std::move(what)) {}
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;
  ~Requests();

  /// Adds a request, for an MPI call to fill in. Errors name `peer` as awaited. The reference is valid until the next
  /// `add`. REQUIRES: MPI's lock is held, from the first to the last.
  [[nodiscard]] MPI_Request& add(const std::optional<Peer>& peer = std::nullopt);
  /// Whether more requests will be added. Until then this counts as incomplete.
  void expect_more(bool expected) noexcept { expects_more_ = expected; }
  [[nodiscard]] bool expects_more() const noexcept { return expects_more_; }
  /// Removes all requests, before the next run. REQUIRES: nothing is in flight.
  void clear() noexcept;
  /// Reserves memory, so that adding this many requests allocates nothing.
  void reserve(std::size_t requests);

  /// Checks once whether all requests are complete. Throws TransportError if MPI reports a failure.
  [[nodiscard]] bool test();
  /// Checks until all requests are complete or `over()` is true, and yields in between. `over` may throw.
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

}  // namespace shardrun::mpi_transport
