#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace shardrun::test::fake_nccl {

inline constexpr std::size_t most_members = 16;
inline constexpr std::size_t most_orders = 64;

/// What a member says about its call, so that other members can compare it with theirs.
struct Description {
  std::uint32_t kind;
  std::uint32_t dtype;
  std::uint32_t reduction;
  std::uint32_t root;
  std::uint64_t count;
  std::uint64_t bytes;  ///< size of the data that it sends
  int device;
  /// For another communicator that has this member and the member on `device`: how many calls it had been given.
  struct Order {
    std::uint64_t world;
    int device;
    std::uint64_t given;
  } orders[most_orders];
};

/// Passes data from one member to one or all others. The next data is posted when all receivers have taken the last.
struct Channel {
  std::atomic<std::uint64_t> posted;
  std::atomic<std::uint64_t> taken[most_members];
  Description description;
};

/// The state of a communicator, which the processes of its members share: a mapped file, removed once all have joined.
class World {
 public:
  /// `place`: the path of the file. The first member creates it.
  World(std::string place, std::uint32_t members, std::uint32_t rank, int device);
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  ~World();

  [[nodiscard]] std::uint32_t size() const noexcept { return members_; }
  [[nodiscard]] std::uint64_t number() const noexcept { return number_; }
  [[nodiscard]] bool is_complete() const noexcept;
  /// Whether two members are on the same device. REQUIRES: is_complete().
  [[nodiscard]] bool shares_a_device() const noexcept;
  /// Whether two members with the same NCCL_HOSTID, which NCCL takes for one host, are on the same device.
  /// REQUIRES: is_complete().
  [[nodiscard]] bool shares_a_device_of_a_host() const noexcept;
  [[nodiscard]] int device_of(std::uint32_t member) const noexcept;
  /// The channel from a member to all members.
  [[nodiscard]] Channel& to_all(std::uint32_t from) const noexcept { return channels_[from]; }
  [[nodiscard]] Channel& link(std::uint32_t from, std::uint32_t to) const noexcept {
    return channels_[members_ + from * members_ + to];
  }
  [[nodiscard]] std::byte* data(const Channel& channel) const noexcept;

  /// Makes the communicator fail on all members.
  void fail(const std::string& why) noexcept;
  [[nodiscard]] bool has_failed() const noexcept;
  [[nodiscard]] std::string failure() const;

  static constexpr std::size_t most_bytes = std::size_t{16} << 20U;

 private:
  struct Header;

  std::string place_;
  std::uint32_t members_;
  std::uint64_t number_;
  std::size_t bytes_ = 0;
  Header* header_ = nullptr;
  Channel* channels_ = nullptr;
  std::byte* data_ = nullptr;
};

}  // namespace shardrun::test::fake_nccl
