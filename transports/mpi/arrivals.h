#pragma once

#include <shardrun/sdk/transport/group.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace shardrun::mpi_transport {

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
  /// completed its part early (the root of a broadcast) and is busy elsewhere counts as missing.
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

}  // namespace shardrun::mpi_transport
