#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/conformance/kinds.h"
#include "core/conformance/peer.h"
#include "core/device/host_memory.h"
#include "plugins/loader/transport.h"

namespace shardrun::conformance {

/// A group, as one of its members uses it.
struct MemberGroup {
  plugins::TransportGroup group;
  std::uint32_t rank = 0;  ///< index of this member in the group
  std::uint32_t size = 0;
};

/// Gives a transport its host functions, on top of the store of a check.
class StoreHost final : public plugins::TransportHost {
 public:
  /// `place`: a prefix for this transport's keys in the store. Ranks that open the transport together use the same
  /// prefix; no others use it.
  StoreHost(Store& store, std::string place) : store_(store), place_(std::move(place)) {}

  [[nodiscard]] bool aborted() const noexcept override { return store_.aborted(); }
  void store_set(const std::string& key, std::string value) override { store_.set(place_ + "/" + key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;
  /// Opens the transport on rank `rank` of `n` ranks, all on this machine.
  void open(plugins::Transport& transport, std::uint32_t rank, std::uint32_t n);

 private:
  Store& store_;
  std::string place_;
};

/// A process of a check, as a rank with an opened transport.
class Member final : public Peer {
 public:
  Member(Store& store, const plugins::Directories& directories, const std::string& transport, std::uint32_t rank,
         std::uint32_t world_size, const std::vector<std::string>& settings);

  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }
  [[nodiscard]] plugins::Transport& transport() noexcept { return transport_; }
  /// Whether the transport was built with headers that have sr_error::awaited.
  [[nodiscard]] bool knows_awaited() const noexcept { return transport_.manifest().abi_minor >= 5; }

  /// Connects a group with this id. `ranks`: its members; they must include this rank.
  [[nodiscard]] MemberGroup connect(const std::string& name, std::uint64_t id, const std::vector<std::uint32_t>& ranks);
  /// The group of the ranks below `n`. The first call connects it. REQUIRES: this rank is below `n`.
  [[nodiscard]] MemberGroup& first(std::uint32_t n);

  /// Memory that is registered with the transport, valid until the next forget(). Throws Error{internal} beyond 64 MiB.
  [[nodiscard]] sdk::Buffer registered(std::size_t bytes);
  void forget() noexcept { used_ = 0; }

 private:
  std::uint32_t world_size_;
  device::HostMemory arena_;
  std::size_t used_ = 0;
  StoreHost host_;
  plugins::Transport transport_;
  std::uint64_t registration_ = 0;
  std::map<std::uint32_t, MemberGroup> first_;
};

/// Seconds in which ops of a failed group must end. The interface allows one second; a busy machine gets more.
constexpr double failure_limit_s = 5;

/// Waits for an op that must fail within failure_limit_s. Returns its error code. Throws Failure if it does not fail.
ErrorCode failure_of(plugins::TransportOp& op, const std::string& what);
/// Like failure_of(), but polls the op with op_test.
ErrorCode polled_failure_of(plugins::TransportOp& op, const std::string& what);

using Case = CaseOf<Member, 4>;

// Each of these functions adds the cases of its own source file.
void add_collective_cases(std::vector<Case>& cases);
void add_group_cases(std::vector<Case>& cases);
void add_message_cases(std::vector<Case>& cases);
void add_mismatch_cases(std::vector<Case>& cases);
void add_failure_cases(std::vector<Case>& cases);
void add_awaited_cases(std::vector<Case>& cases);
void add_memory_cases(std::vector<Case>& cases);
void add_restart_cases(std::vector<Case>& cases);
void add_death_cases(std::vector<Case>& cases);
void add_queue_cases(std::vector<Case>& cases);

/// All cases. Those with the same number of ranks are adjacent.
[[nodiscard]] std::vector<Case> transport_cases();

}  // namespace shardrun::conformance
