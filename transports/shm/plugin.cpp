#include <sys/stat.h>

#include <mutex>
#include <shardrun/sdk/transport.hpp>

#include "transports/shm/group.h"

namespace {

using namespace shardrun::sdk;

/// Connects ranks of one machine, which access each other's arenas in place. Memory is memfds, which peers open through
/// /proc. It has no names, so a process that dies leaves nothing behind.
class SharedMemory {
 public:
  static Props props() { return {.flags = SR_TRANSPORT_SAME_HOST | SR_TRANSPORT_AUTOMATIC}; }

  static std::optional<OpInfo> query(const OpSpec& op, std::uint32_t) {
    const OpcodeTraits& traits = *find_opcode(op.opcode);
    return OpInfo{.flags = SR_OP_INFO_ASYNC | (traits.collective ? SR_OP_INFO_NATIVE : 0) |
                           (traits.reduces ? SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE | SR_OP_INFO_ROUNDED_ONCE : 0)};
  }

  void open(const Config& config) {
    if (config.machines.empty() && config.local_world_size != config.world_size) {
      throw InvalidJob("it reaches ranks of one machine only, and " +
                       std::to_string(config.world_size - config.local_world_size) + " of the job's " +
                       std::to_string(config.world_size) +
                       " ranks are on others: choose another transport for them, such as tcp");
    }
    state_.config = config;
  }
  void close() {}

  [[nodiscard]] std::uint64_t wire_bytes() const { return state_.wire_bytes.load(std::memory_order_relaxed); }

  std::uint64_t mem_register(const sr_memory& memory) {
    shardrun::shm_transport::Registration registration{.data = static_cast<std::byte*>(memory.data),
                                                       .bytes = memory.bytes,
                                                       .descriptor = memory.descriptor,
                                                       .offset = memory.descriptor_offset};
    struct stat status {};
    if (memory.descriptor >= 0) {
      if (fstat(memory.descriptor, &status) != 0) {
        throw TransportError(SR_INVALID, "descriptor " + std::to_string(memory.descriptor) +
                                             " of the memory to "
                                             "register is not open");
      }
      registration.inode = status.st_ino;
    }
    const std::unique_lock lock(state_.registrations_mutex);
    state_.registrations.emplace(++last_, registration);
    return last_;
  }
  void mem_deregister(std::uint64_t registration) {
    const std::unique_lock lock(state_.registrations_mutex);
    state_.registrations.erase(registration);
  }

  std::unique_ptr<Group> group(const GroupSpec& spec) {
    if (spec.size() == 1) {
      return std::make_unique<LoneGroup>();
    }
    require_one_machine(spec);
    return std::make_unique<shardrun::shm_transport::ShmGroup>(state_, spec);
  }

 private:
  void require_one_machine(const GroupSpec& spec) const {
    const std::vector<std::uint32_t>& machines = state_.config.machines;
    for (const std::uint32_t member : spec.members) {
      if (!machines.empty() && machines[member] != machines[spec.members[0]]) {
        throw InvalidJob("it reaches ranks of one machine only, and of group '" + spec.name + "' rank " +
                         std::to_string(member) + " is on another than rank " + std::to_string(spec.members[0]) +
                         ": choose another transport, such as tcp, for this axis ([transport])");
      }
    }
  }

  shardrun::shm_transport::ShmTransportState state_;
  std::uint64_t last_ = 0;
};

}  // namespace

SHARDRUN_EXPORT_TRANSPORT(SharedMemory, "shm", "1.0", "shared_memory sharedmemory local ipc posix sm vader")
