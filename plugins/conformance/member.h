#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "plugins/conformance/store.h"
#include "plugins/loader/transport.h"

namespace shardrun::conformance {

/// What a transport did wrong.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Nanoseconds of CLOCK_MONOTONIC from now.
[[nodiscard]] std::int64_t after(double seconds);

/// Longer than anything here may take.
constexpr double patience_s = 20;

/// A group as a member of it sees it.
struct MemberGroup {
  plugins::TransportGroup group;
  std::uint32_t rank = 0;  ///< within the group
  std::uint32_t size = 0;
};

/// This process as one rank, with the transport opened.
class Member final : private plugins::TransportHost {
 public:
  Member(Store& store, const plugins::Directories& directories, const std::string& transport, std::uint32_t rank,
         std::uint32_t world_size);
  ~Member() override;

  [[nodiscard]] std::uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return world_size_; }
  [[nodiscard]] plugins::Transport& transport() noexcept { return transport_; }

  /// Connects; `ranks` contains this one.
  [[nodiscard]] MemberGroup connect(const std::string& name, std::uint64_t id, const std::vector<std::uint32_t>& ranks);
  /// The ranks below `n`, connected by the first call. This one is among them.
  [[nodiscard]] MemberGroup& first(std::uint32_t n);

  /// Waits for the ranks below `n`, outside of the transport. Each place has a name of its own.
  void meet(const std::string& place, std::uint32_t n);
  /// The value that a rank has told the others under this name.
  void tell(const std::string& name, const std::string& value);
  [[nodiscard]] std::string hear(const std::string& name, std::uint32_t from);

  /// Memory that is registered, until the next `forget`.
  [[nodiscard]] plugins::HostBuffer registered(std::size_t bytes);
  void forget() noexcept { used_ = 0; }

 private:
  [[nodiscard]] bool aborted() const noexcept override { return store_.aborted(); }
  void store_set(const std::string& key, std::string value) override { store_.set("transport/" + key, value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline) override;

  struct Arena {
    Arena();
    Arena(const Arena&) = delete;
    Arena& operator=(const Arena&) = delete;
    ~Arena();

    int descriptor;
    std::byte* data;
  };

  Store& store_;
  std::uint32_t rank_;
  std::uint32_t world_size_;
  Arena arena_;
  std::size_t used_ = 0;
  plugins::Transport transport_;
  std::uint64_t registration_ = 0;
  std::map<std::uint32_t, MemberGroup> first_;
};

}  // namespace shardrun::conformance
