#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda/fake_cuda.h"

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

enum class Kind : std::uint32_t { send, recv, broadcast, reduce, all_reduce, all_gather, reduce_scatter };

struct Call {
  Kind kind{};
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t dtype{};
  ncclRedOp_t reduction{};
  int peer = 0;
  ncclComm_t comm = nullptr;
  void* stream = nullptr;
  // Used once the call is part of a stream's work:
  std::uint64_t number = 0;  ///< index of the call in its channel
  std::vector<Description::Order> orders;
  bool is_posted = false;
  bool is_done = false;
  std::uint64_t hash = 0;  ///< hash of the data that it sends
};

/// A call as text: "all_reduce 5".
[[nodiscard]] std::string text_of(const Call& call);
[[nodiscard]] std::size_t size_of(ncclDataType_t dtype);
/// How many bytes the member reads for sending, and how many it writes.
[[nodiscard]] std::size_t bytes_sent(const Call& call, std::uint32_t rank, std::uint32_t members);
[[nodiscard]] std::size_t bytes_received(const Call& call, std::uint32_t rank, std::uint32_t members);

/// The calls of one group of a communicator, as one work of a stream. At its beginning it overwrites the memory that it
/// will write, and copies the data that it sends. At the end that data must be unchanged.
class Works final : public fake_cuda::JointWork {
 public:
  Works(std::shared_ptr<World> world, std::shared_ptr<std::atomic<bool>> is_aborted, std::uint32_t rank,
        std::vector<Call> calls);

  bool can_go_on() override;
  bool go_on() override;

 private:
  [[nodiscard]] Channel& own_channel(const Call& call) const;
  [[nodiscard]] bool can_post(const Call& call) const;
  [[nodiscard]] bool can_take(const Call& call) const;
  void post(Call& call);
  void take(Call& call);
  void take_collective(Call& call);
  [[nodiscard]] bool is_same(const Call& call, const Description& other, std::uint32_t member) const;
  /// Whether both members had given the same number of calls to their other common communicators.
  [[nodiscard]] bool is_in_order(const Call& call, const Description& other, std::uint32_t member) const;
  [[nodiscard]] std::vector<std::byte> reduced(const Call& call, std::size_t block) const;

  std::shared_ptr<World> world_;
  std::shared_ptr<std::atomic<bool>> is_aborted_;
  std::uint32_t rank_;
  std::vector<Call> calls_;
};

}  // namespace shardrun::test::fake_nccl
