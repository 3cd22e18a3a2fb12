#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/cuda/fake_nccl_world.h"

namespace shardrun::test::fake_nccl {

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
