#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>

namespace shardrun::nccl_transport {

class NcclGroup;

/// The memory that the host has registered. Each group registers its ops' memory with its communicator. Any thread may
/// use it.
class Memories {
 public:
  struct Memory {
    void* data = nullptr;
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] std::uint64_t add(const Memory& memory);
  /// Removes a memory. Groups must have deregistered it before.
  void remove(std::uint64_t registration);
  /// The memory that contains the buffer; nothing if the buffer is not in registered memory. Throws
  /// TransportError{SR_INVALID} if the buffer names a registration that does not contain it.
  [[nodiscard]] std::optional<Memory> memory_of(const sdk::Buffer& buffer) const;

  void add(NcclGroup& group);
  void remove(NcclGroup& group);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Memory> memories_;
  std::uint64_t last_ = 0;
  std::list<NcclGroup*> groups_;
};

}  // namespace shardrun::nccl_transport
