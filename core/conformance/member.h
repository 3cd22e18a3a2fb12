#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/conformance/peer.h"
#include "plugins/loader/transport.h"

namespace shardrun::conformance {

/// One member's view of a group.
struct MemberGroup {
  plugins::TransportGroup group;
  std::uint32_t rank = 0;  ///< within the group
  std::uint32_t size = 0;
};

/// This process as one rank, with the transport opened.
class Member final : public Peer, private plugins::TransportHost {
 public:
  Member(Store& store, const plugins::Directories& directories, const std::string& transport, std::uint32_t rank,
         std::uint32_t world_size, const std::vector<std::string>& settings);
  ~Member() override;

  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }
  [[nodiscard]] plugins::Transport& transport() noexcept { return transport_; }
  /// Whether the transport's headers have sr_error::awaited.
  [[nodiscard]] bool knows_awaited() const noexcept { return transport_.manifest().abi_minor >= 5; }

  /// Connects a group. `ranks` contains this one.
  [[nodiscard]] MemberGroup connect(const std::string& name, std::uint64_t id, const std::vector<std::uint32_t>& ranks);
  /// The group of the ranks below `n`, which contains this one. The first call connects it.
  [[nodiscard]] MemberGroup& first(std::uint32_t n);

  /// Registered memory, valid until the next `forget`.
  [[nodiscard]] sdk::Buffer registered(std::size_t bytes);
  void forget() noexcept { used_ = 0; }

 private:
  void open();
  [[nodiscard]] bool aborted() const noexcept override { return store().aborted(); }
  void store_set(const std::string& key, std::string value) override { store().set("transport/" + key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;

  struct Arena {
    Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    int descriptor;
    std::byte* data;
  };

  std::uint32_t world_size_;
  Arena arena_;
  std::size_t used_ = 0;
  plugins::Transport transport_;
  std::uint64_t registration_ = 0;
  std::map<std::uint32_t, MemberGroup> first_;
};

}  // namespace shardrun::conformance
