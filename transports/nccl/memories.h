#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <optional>

namespace shardrun::nccl_transport {

class NcclGroup;

/// The memory that the host has registered. Each group registers its ops' memory with its communicator. Any thread.
class Memories {
 public:
  struct Memory {
    void* data = nullptr;
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] std::uint64_t add(const Memory& memory);
  /// Groups let go of it first.
  void remove(std::uint64_t registration);
  /// The memory that contains the buffer; nothing where it is not in registered memory. Throws
  /// TransportError{SR_INVALID} where it is said to be and is not.
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
