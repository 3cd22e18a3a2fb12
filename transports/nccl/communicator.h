#pragma once

#include <shardrun/sdk/transport/group.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>

#include "transports/nccl/device.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl_transport {

/// All groups of one rank share this state.
struct NcclTransportState {
  Libraries libraries;
  sdk::Config config;
  sdk::Host log;
  std::string gpu;  ///< this rank's GPU: "MACHINE BUS-ID"
};

/// A non-blocking NCCL communicator: work that a call starts may continue after the call returns. Only one thread at a
/// time may use it, with the device current.
class Communicator {
 public:
  /// Connects to the other members, which get NCCL's id from the store under `key`. Throws TransportError.
  Communicator(const NcclTransportState& state, const sdk::GroupSpec& spec, const std::string& key);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Waits up to half a second for members that are still working, and then aborts.
  ~Communicator();

  /// Registers memory with NCCL, so that ops can move it faster. Does nothing if the memory is registered already. If
  /// the result is ncclInProgress, `state` tells how the registration ends. Memory that NCCL cannot register is moved,
  /// too; before NCCL 2.19 that is all memory. REQUIRES: nothing is in progress, and the communicator was not aborted.
  [[nodiscard]] ncclResult_t register_memory(void* data, std::size_t bytes);
  void deregister_memory(void* data);

  /// Issues all calls as one NCCL group. Does nothing without calls. Returns ncclSuccess if the stream has all calls,
  /// ncclInProgress if `state` will tell when it has, or an error. REQUIRES: as for register_memory().
  [[nodiscard]] ncclResult_t launch(std::span<const NcclCall> calls, CUstream stream);
  [[nodiscard]] ncclResult_t state();
  /// Aborts the communicator, including its work on the device.
  void abort() noexcept;
  /// NCCL's text for a result: "remote process exited …: its last error".
  [[nodiscard]] std::string text_of(ncclResult_t result) const;

 private:
  void connect(const sdk::GroupSpec& spec, const ncclUniqueId& id);
  [[nodiscard]] ncclResult_t issue(const NcclCall& call, CUstream stream);
  [[nodiscard]] std::string shared_gpu(const sdk::GroupSpec& spec) const;
  [[nodiscard]] ncclUniqueId exchange_id(const sdk::GroupSpec& spec, const std::string& key) const;

  const NcclTransportState& state_;
  const Nccl& nccl_;
  ncclComm_t handle_ = nullptr;
  /// Maps memory to NCCL's handle for it. NCCL can write the handle later. Null: there is no handle.
  std::map<void*, void*> registered_;
};

/// The key in the store under which a rank publishes its GPU.
[[nodiscard]] std::string gpu_key(std::uint32_t rank);

/// Yields between two polls, or sleeps after 100 rounds, longer after more rounds.
void pause_polling(std::uint32_t round) noexcept;

}  // namespace shardrun::nccl_transport
