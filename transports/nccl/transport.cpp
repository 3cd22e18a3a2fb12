#include "transports/nccl/transport.h"

#include <optional>
#include <string>

namespace shardrun::nccl {
namespace {

constexpr std::int64_t by_local_rank = -1;

}  // namespace

struct NcclTransport::Opened {
  Opened(const sdk::Config& config, const sdk::Host& log)
      : state{.libraries = load_libraries(), .config = config, .log = log, .gpu = {}},
        device(state.libraries.cuda, chosen_by(config), static_cast<int>(config.local_rank)),
        use(std::make_unique<Device::Use>(device)),
        kernels(state.libraries.cuda) {
    use.reset();
    state.gpu = "machine " + machine_of(config) + ", " + device.bus_id();
    try {
      config.host.store_set(gpu_key(config.rank), state.gpu);
    } catch (const sdk::TransportError&) {
      // Another transport of this rank has set it.
    }
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;
  ~Opened() {
    try {
      use = std::make_unique<Device::Use>(device);
    } catch (const sdk::TransportError&) {
      // The device itself is lost.
    }
  }

  static std::string machine_of(const sdk::Config& config) {
    return config.machines.empty() ? config.address : std::to_string(config.machines[config.rank]);
  }

  static std::optional<int> chosen_by(const sdk::Config& config) {
    const std::int64_t chosen = config.options.integer("device");
    return chosen == by_local_rank ? std::nullopt : std::optional(static_cast<int>(chosen));
  }

  NcclTransportState state;
  Device device;
  std::unique_ptr<Device::Use> use;  ///< while `kernels` are loaded and unloaded
  Kernels kernels;
  std::atomic<std::uint64_t> wire_bytes = 0;
  Memories memories;
  std::map<std::pair<std::uint64_t, std::vector<std::uint32_t>>, std::uint64_t> generations;
  Watchdog watchdog;
};

NcclTransport::NcclTransport(sdk::Host log) : log_(log) {}
NcclTransport::~NcclTransport() = default;

std::vector<sdk::Option> NcclTransport::options() {
  return {sdk::integer_option("device", by_local_rank, by_local_rank, 1023,
                              "the CUDA device that every rank uses; -1: that with the rank's number on its machine, "
                              "or the only one that it may use")};
}

sdk::Props NcclTransport::props() const {
  return {.memory_kinds = std::uint32_t{1} << SR_MEMORY_CUDA, .queue_kinds = std::uint32_t{1} << SR_QUEUE_CUDA};
}

std::optional<sdk::OpInfo> NcclTransport::query(const sdk::OpSpec& op, std::uint32_t group_size) const {
  return info_of(op, group_size, has_kernels());
}

void NcclTransport::open(const sdk::Config& config) { opened_ = std::make_unique<Opened>(config, log_); }
void NcclTransport::close() { opened_.reset(); }

std::uint64_t NcclTransport::wire_bytes() const { return opened_ != nullptr ? opened_->wire_bytes.load() : 0; }

std::uint64_t NcclTransport::mem_register(const sr_memory& memory) {
  if (memory.kind != SR_MEMORY_CUDA) {
    throw sdk::TransportError(SR_INVALID, "memory of kind " + std::to_string(memory.kind) +
                                              " cannot be moved: CUDA memory alone (kind " +
                                              std::to_string(SR_MEMORY_CUDA) + ")");
  }
  if (memory.device != static_cast<std::uint32_t>(opened_->device.ordinal())) {
    throw sdk::TransportError(SR_INVALID, "memory on device " + std::to_string(memory.device) +
                                              ", and this rank's is " + std::to_string(opened_->device.ordinal()));
  }
  return opened_->memories.add({.data = memory.data, .bytes = memory.bytes});
}

void NcclTransport::mem_deregister(std::uint64_t registration) { opened_->memories.remove(registration); }

std::unique_ptr<sdk::Group> NcclTransport::group(const sdk::GroupSpec& spec) {
  // A key of the store can be set only once, so a group made again needs another.
  std::string key =
      "nccl/" + std::to_string(spec.id) + "/" + std::to_string(opened_->generations[{spec.id, spec.members}]++);
  for (const std::uint32_t member : spec.members) {
    key += "/" + std::to_string(member);
  }
  return std::make_unique<NcclGroup>(opened_->state, opened_->device, opened_->kernels, opened_->memories,
                                     opened_->watchdog, opened_->wire_bytes, spec, key);
}

}  // namespace shardrun::nccl
