#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

namespace shardrun::mpi_transport {

/// Who has come to a collective, of which MPI says nothing. Members number the collectives that they start, which they
/// do in one order; one that has waited for half of its time says in the job's store where it is. Who is late finds
/// there who has come as far. A job that goes well never gets to the store.
class RollCall {
 public:
  /// `key` is the group's own, the same on all members.
  RollCall(const sdk::TransportHost& host, std::string key, std::uint32_t rank, std::uint32_t size);

  /// The number of the collective that starts now, from 1. REQUIRES: MPI's lock.
  [[nodiscard]] std::uint64_t next() noexcept { return ++started_; }

  // Any thread.
  /// That this member has come as far as that collective, and waits.
  void report(std::uint64_t turn) noexcept;
  /// Members that have not said that they came as far, once a short while for their word is over. One that was done
  /// early, as the root of a broadcast is, and is busy elsewhere since then is among them.
  [[nodiscard]] std::vector<std::uint32_t> missing(std::uint64_t turn) noexcept;

 private:
  struct Told {
    std::uint64_t turn = 0;
    std::uint64_t words = 0;  ///< that were read
    bool is_asked = false;
  };

  [[nodiscard]] std::string key_of(std::uint32_t member, std::uint64_t word) const;
  /// Reads what that member has said since. False where the store tells no more.
  [[nodiscard]] bool ask(std::uint32_t member);

  sdk::TransportHost host_;
  std::string key_;
  std::uint32_t rank_;
  std::uint64_t started_ = 0;
  std::mutex mutex_;  ///< of what follows
  std::uint64_t words_ = 0;
  std::vector<Told> told_;  ///< by member
};

}  // namespace shardrun::mpi_transport
