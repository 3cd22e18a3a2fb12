#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transports/nccl/communicator.h"
#include "transports/nccl/device.h"
#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {
namespace {

/// The value of the option `device` if no device is chosen.
constexpr std::int64_t by_local_rank = -1;

/// The device that a rank uses, and the transport's kernels on it.
struct Used {
  Used(const NcclTransportState& state, std::optional<int> chosen)
      : device(state.libraries.cuda, chosen, static_cast<int>(state.config.local_rank)),
        use(std::make_unique<Device::Use>(device)),
        kernels(state.libraries.cuda) {
    use.reset();
  }
  Used(const Used&) = delete;
  Used& operator=(const Used&) = delete;
  ~Used() {
    try {
      use = std::make_unique<Device::Use>(device);
    } catch (const sdk::TransportError&) {
      // The device itself is lost.
    }
  }

  Device device;
  std::unique_ptr<Device::Use> use;  ///< makes the device current while `kernels` is made and destroyed
  Kernels kernels;
  Memories memories;
  Watchdog watchdog;
};

/// The transport from open() to close().
struct Opened {
  Opened(const sdk::Config& config, const sdk::Host& log)
      : state{.libraries = load_libraries(), .config = config, .log = log, .gpu = {}} {
    (void)count_devices(state.libraries.cuda);
  }

  /// Opens the device that the option names, else that of the host's memory, else the one with the rank's local number.
  Used& on_device(std::optional<int> of_memory) {
    if (used == nullptr) {
      const std::int64_t chosen = state.config.options.integer("device");
      used = std::make_unique<Used>(state, chosen == by_local_rank ? of_memory : static_cast<int>(chosen));
      state.gpu = "machine " + machine() + ", " + used->device.bus_id();
      try {
        state.config.host.store_set(gpu_key(state.config.rank), state.gpu);
      } catch (const sdk::TransportError&) {
        // Another transport of this rank has set it already.
      }
    }
    return *used;
  }

  [[nodiscard]] std::string machine() const {
    const sdk::Config& config = state.config;
    return config.machines.empty() ? config.address : std::to_string(config.machines[config.rank]);
  }

  NcclTransportState state;
  std::unique_ptr<Used> used;  ///< set when the first memory or group is made
  std::atomic<std::uint64_t> wire_bytes = 0;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations;
};

/// Moves CUDA memory with NCCL. The plugin is not linked with CUDA or NCCL; open() loads both.
class NcclTransport {
 public:
  explicit NcclTransport(sdk::Host log) : log_(log) {}

  static std::vector<sdk::Option> options() {
    return {
        sdk::integer_option("device", by_local_rank, by_local_rank, 1023,
                            "the CUDA device that every rank uses; -1: that of the job's memory; where there is "
                            "none yet, that with the rank's number on its machine, or the only one that it may use")};
  }

  sdk::Props props() const {
    return {.flags = SR_TRANSPORT_AUTOMATIC,
            .memory_kinds = std::uint32_t{1} << SR_MEMORY_CUDA,
            .queue_kinds = std::uint32_t{1} << SR_QUEUE_CUDA};
  }

  std::optional<sdk::OpInfo> query(const sdk::OpSpec& op, std::uint32_t group_size) const {
    if (const std::optional<sdk::OpInfo> info = info_of(op, group_size, has_kernels())) {
      return info;
    }
    throw sdk::TransportError(SR_UNIMPLEMENTED, sdk::describe(op) + no_kernels);
  }

  void open(const sdk::Config& config) { opened_ = std::make_unique<Opened>(config, log_); }
  void close() { opened_.reset(); }

  std::uint64_t wire_bytes() const { return opened_ != nullptr ? opened_->wire_bytes.load() : 0; }

  std::uint64_t mem_register(const sr_memory& memory) {
    if (memory.kind != SR_MEMORY_CUDA) {
      throw sdk::TransportError(SR_INVALID, "memory of kind " + std::to_string(memory.kind) +
                                                " cannot be moved: CUDA memory alone (kind " +
                                                std::to_string(SR_MEMORY_CUDA) + ")");
    }
    Used& used = opened_->on_device(static_cast<int>(memory.device));
    if (memory.device != static_cast<std::uint32_t>(used.device.ordinal())) {
      throw sdk::TransportError(SR_INVALID,
                                "memory on device " + std::to_string(memory.device) + ", and this rank's is " +
                                    std::to_string(used.device.ordinal()) +
                                    ": set device in [transport.nccl] to the memory's device, or leave it at "
                                    "-1 and register the memory before groups are made");
    }
    return used.memories.add({.data = memory.data, .bytes = memory.bytes});
  }

  void mem_deregister(std::uint64_t registration) { opened_->used->memories.remove(registration); }

  std::unique_ptr<sdk::Group> group(const sdk::GroupSpec& spec) {
    // A key of the store can be set only once, so a group that is made again needs another key.
    std::string key =
        "nccl/" + std::to_string(spec.id) + "/" + std::to_string(opened_->generations[{spec.id, spec.members}]++);
    for (const std::uint32_t member : spec.members) {
      key += "/" + std::to_string(member);
    }
    Used& used = opened_->on_device(std::nullopt);
    return std::make_unique<NcclGroup>(opened_->state, used.device, used.kernels, used.memories, used.watchdog,
                                       opened_->wire_bytes, spec, key);
  }

 private:
  sdk::Host log_;
  std::unique_ptr<Opened> opened_;
};

}  // namespace
}  // namespace shardrun::nccl_transport

SHARDRUN_EXPORT_TRANSPORT(shardrun::nccl_transport::NcclTransport, "nccl", "1.0", "rccl cuda gpu nvlink")
