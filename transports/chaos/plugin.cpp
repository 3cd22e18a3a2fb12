// A transport that passes every call to another one, and injects faults on one rank or on all.
//
// It uses the C tables instead of the SDK's classes. So structs are passed on unchanged, including fields that this
// file does not know. A rank without faults returns the inner transport's own handles.

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "transports/chaos/faults.h"
#include "transports/chaos/group.h"
#include "transports/chaos/op.h"

namespace shardrun::chaos_transport {
namespace {

using sdk::detail::guarded_transport;
using sdk::detail::handle_of;
using sdk::detail::object_of;

class Chaos {
 public:
  explicit Chaos(sdk::Host log) : log_(log) {}

  static std::vector<sdk::Option> options() { return chaos_transport::options(); }

  void configure(const sr_transport_setup& setup) {
    faults_ = faults_of(sdk::OptionValues(setup.options, setup.option_count, setup.option_stride), setup.world_size);
    host_ = sdk::TransportHost(setup.host);
    const sr_plugin& plugin = host_.open_transport(faults_.over);
    inner_ = {plugin.self, static_cast<const sr_transport*>(plugin.functions)};
  }

  /// Opens the inner transport with its own options, which replace those of this transport in the config.
  std::int32_t open(const sr_transport_config* config, sr_error* error) {
    std::vector<std::byte> copy(config->struct_size);
    std::memcpy(copy.data(), config, copy.size());
    auto& inner_config = *reinterpret_cast<sr_transport_config*>(copy.data());
    const sdk::RawOptions options = host_.transport_options(faults_.over);
    inner_config.options = options.data;
    inner_config.option_count = options.count;
    inner_config.option_stride = options.stride;
    const std::int32_t status = inner_(&sr_transport::open, &inner_config, error);
    const Faults here = of_rank(faults_, config->rank);
    if (status == SR_OK && is_any(here)) {
      injector_ = std::make_unique<FaultInjector>(inner_, here, config->rank, log_, sdk::TransportHost(config->host));
    }
    return status;
  }

  std::int32_t close(sr_error* error) {
    if (injector_ != nullptr) {
      injector_->warn_if_not_injected();
      injector_.reset();
    }
    return inner_(&sr_transport::close, error);
  }

  std::int32_t group_create(const sr_group* group, std::uint64_t* handle, sr_error* error) {
    std::uint64_t inner_handle = 0;
    const std::int32_t status = inner_(&sr_transport::group_create, group, &inner_handle, error);
    if (status == SR_OK) {
      *handle = injector_ == nullptr
                    ? inner_handle
                    : handle_of(std::make_unique<FaultyGroup>(*injector_, sdk::detail::read_one(group), inner_handle));
    }
    return status;
  }

  /// Null before `configure`, which comes before every other call.
  [[nodiscard]] const Inner& inner() const noexcept { return inner_; }
  [[nodiscard]] bool is_faulty() const noexcept { return injector_ != nullptr; }

 private:
  sdk::Host log_;
  Faults faults_;
  sdk::TransportHost host_;
  Inner inner_;
  std::unique_ptr<FaultInjector> injector_;
};

Chaos& self_of(void* self) noexcept { return sdk::detail::Instance<Chaos>::object(self); }

/// Passes a call on to the inner transport.
template <auto Function, class... Arguments>
std::int32_t pass(void* self, Arguments... arguments) noexcept {
  return self_of(self).inner()(Function, arguments...);
}

/// On a rank with faults, calls `act`; otherwise calls the inner transport's function. `handle`: the inner transport's.
template <class Object, auto Function, class Act, class... Arguments>
std::int32_t pass_or(void* self, std::uint64_t handle, Act act, sr_error* error, Arguments... arguments) noexcept {
  const Chaos& chaos = self_of(self);
  if (!chaos.is_faulty()) {
    return chaos.inner()(Function, handle, arguments..., error);
  }
  return guarded_transport(error, [&] { return act(object_of<Object>(handle)); });
}

std::int32_t configure(void* self, const sr_transport_setup* setup, sr_error* error) noexcept {
  return guarded_transport(error, [&] {
    self_of(self).configure(sdk::detail::read_one(setup));
    return SR_OK;
  });
}

std::int32_t open(void* self, const sr_transport_config* config, sr_error* error) noexcept {
  return guarded_transport(error, [&] { return self_of(self).open(config, error); });
}

std::int32_t close(void* self, sr_error* error) noexcept {
  return guarded_transport(error, [&] { return self_of(self).close(error); });
}

std::int32_t group_create(void* self, const sr_group* group, std::uint64_t* handle, sr_error* error) noexcept {
  return guarded_transport(error, [&] { return self_of(self).group_create(group, handle, error); });
}

std::int32_t group_error(void* self, std::uint64_t group, sr_error* error) noexcept {
  return pass_or<FaultyGroup, &sr_transport::group_error>(
      self, group, [&](const FaultyGroup& faulty) { return faulty.error(error); }, error);
}

std::int32_t group_abort(void* self, std::uint64_t group, const char* reason, sr_error* error) noexcept {
  return pass_or<FaultyGroup, &sr_transport::group_abort>(
      self, group, [&](FaultyGroup& faulty) { return faulty.abort(reason, error); }, error, reason);
}

std::int32_t group_destroy(void* self, std::uint64_t group, sr_error* error) noexcept {
  return pass_or<FaultyGroup, &sr_transport::group_destroy>(
      self, group,
      [&](FaultyGroup& faulty) {
        const std::unique_ptr<FaultyGroup> last(&faulty);
        return faulty.destroy(error);
      },
      error);
}

std::int32_t op_prepare(void* self, std::uint64_t group, const sr_op* ops, std::uint32_t count, std::uint32_t stride,
                        std::int64_t deadline, std::uint64_t* handle, sr_error* error) noexcept {
  return pass_or<FaultyGroup, &sr_transport::op_prepare>(
      self, group, [&](FaultyGroup& faulty) { return faulty.prepare(ops, count, stride, deadline, handle, error); },
      error, ops, count, stride, deadline, handle);
}

std::int32_t op_start(void* self, std::uint64_t op, void* queue, std::int64_t deadline, sr_error* error) noexcept {
  return pass_or<FaultyOp, &sr_transport::op_start>(
      self, op, [&](FaultyOp& faulty) { return faulty.start(queue, sdk::Deadline::from_border(deadline), error); },
      error, queue, deadline);
}

std::int32_t op_test(void* self, std::uint64_t op, sr_error* error) noexcept {
  return pass_or<FaultyOp, &sr_transport::op_test>(
      self, op, [&](FaultyOp& faulty) { return faulty.test(error); }, error);
}

std::int32_t op_wait(void* self, std::uint64_t op, std::int64_t deadline, sr_error* error) noexcept {
  return pass_or<FaultyOp, &sr_transport::op_wait>(
      self, op, [&](FaultyOp& faulty) { return faulty.wait(sdk::Deadline::from_border(deadline), error); }, error,
      deadline);
}

std::int32_t op_free(void* self, std::uint64_t op, sr_error* error) noexcept {
  return pass_or<FaultyOp, &sr_transport::op_free>(
      self, op, [&](FaultyOp& faulty) { return faulty.free(error); }, error);
}

/// Passes the call on if the inner transport has the function. A rank with faults knows the times itself.
std::int32_t op_times(void* self, std::uint64_t op, sr_op_times* times, sr_error* error) noexcept {
  const sr_transport& inner = *self_of(self).inner().functions;
  if (!self_of(self).is_faulty() && (!SR_HAS(&inner, sr_transport, op_times) || inner.op_times == nullptr)) {
    sdk::detail::write_error(error, "when the op was under way is not known");
    return SR_UNIMPLEMENTED;
  }
  return pass_or<FaultyOp, &sr_transport::op_times>(
      self, op,
      [&](const FaultyOp& faulty) {
        sdk::detail::write(faulty.times(), *times);
        return SR_OK;
      },
      error, times);
}

std::int32_t share_first(void* self, std::uint32_t rank, std::uint32_t world_size, void* data, std::uint64_t bytes,
                         sr_error* error) noexcept {
  const Inner& inner = self_of(self).inner();
  if (inner.functions == nullptr || !SR_HAS(inner.functions, sr_transport, share_first) ||
      inner.functions->share_first == nullptr) {
    sdk::detail::write_error(error, "the transport below does not offer it");
    return SR_UNIMPLEMENTED;
  }
  return inner(&sr_transport::share_first, rank, world_size, data, bytes, error);
}

/// A fault that delays or loses what others send shows in the inner transport's numbers, too.
std::int32_t arrivals(void* self, std::uint32_t rank, sr_arrivals* to, sr_error* error) noexcept {
  const Inner& inner = self_of(self).inner();
  if (!SR_HAS(inner.functions, sr_transport, arrivals) || inner.functions->arrivals == nullptr) {
    return SR_UNIMPLEMENTED;
  }
  return inner(&sr_transport::arrivals, rank, to, error);
}

/// The inner transport's properties, without queues: faults are injected when an op is started.
std::int32_t props(void* self, sr_transport_props* to, sr_error* error) noexcept {
  const std::int32_t status = self_of(self).inner()(&sr_transport::props, to, error);
  if (SR_HAS(to, sr_transport_props, queue_kinds)) {
    to->queue_kinds = 0;
  }
  return status;
}

constexpr sr_transport functions = {sizeof(sr_transport),
                                    0,
                                    props,
                                    pass<&sr_transport::op_query>,
                                    open,
                                    close,
                                    pass<&sr_transport::stats>,
                                    pass<&sr_transport::mem_register>,
                                    pass<&sr_transport::mem_deregister>,
                                    group_create,
                                    group_error,
                                    group_abort,
                                    group_destroy,
                                    op_prepare,
                                    op_start,
                                    op_test,
                                    op_wait,
                                    op_free,
                                    op_times,
                                    configure,
                                    share_first,
                                    nullptr,
                                    nullptr,
                                    arrivals};

}  // namespace
}  // namespace shardrun::chaos_transport

/// Requires minor 2: a host that configures transports before every other call.
const sr_manifest shardrun_manifest_v1 = {
    sizeof(sr_manifest),     SR_MAGIC, SR_ABI_MAJOR, SR_ABI_MINOR, 2, SR_KIND_TRANSPORT, "chaos", "1.0",
    "fault_injection faulty"};

int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {
  return shardrun::sdk::detail::open_instance<shardrun::chaos_transport::Chaos>(
      host, SR_KIND_TRANSPORT, &shardrun::chaos_transport::functions, error, plugin);
}
