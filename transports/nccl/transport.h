#pragma once

#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/nccl/communicator.h"
#include "transports/nccl/device.h"
#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {

/// Moves CUDA memory with NCCL. It links nothing of CUDA; `open` loads the libraries.
class NcclTransport {
 public:
  explicit NcclTransport(sdk::Host log);
  ~NcclTransport();

  static std::vector<sdk::Option> options();
  [[nodiscard]] sdk::Props props() const;
  [[nodiscard]] std::optional<sdk::OpInfo> query(const sdk::OpSpec& op, std::uint32_t group_size) const;
  void open(const sdk::Config& config);
  void close();
  [[nodiscard]] std::uint64_t wire_bytes() const;
  std::uint64_t mem_register(const sr_memory& memory);
  void mem_deregister(std::uint64_t registration);
  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec);

 private:
  struct Used;
  struct Opened;
  sdk::Host log_;
  std::unique_ptr<Opened> opened_;
};

}  // namespace shardrun::nccl_transport
