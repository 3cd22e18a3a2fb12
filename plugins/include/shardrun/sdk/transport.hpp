#pragma once

/// A transport as a C++ class:
///
///     class Wire {
///      public:
///       static std::vector<Option> options();  // may be left out
///       void configure(const Setup& setup);    // may be left out
///       Props props() const;
///       std::optional<OpInfo> query(const OpSpec& op, std::uint32_t group_size) const;  // nothing: not offered
///       void open(const Config& config);
///       void close();
///       std::uint64_t wire_bytes() const;
///       std::uint64_t mem_register(const sr_memory& memory);
///       void mem_deregister(std::uint64_t registration);
///       std::unique_ptr<Group> group(const GroupSpec& spec);
///     };
///     SHARDRUN_EXPORT_TRANSPORT(Wire, "wire", "1.0")
///
/// A transport through which ranks can find each other also has `void share_first(std::uint32_t rank, std::uint32_t
/// world_size, std::span<std::byte> data)`.
///
/// The class is constructed without arguments or from a Host. shardrun/transport.h states what each function does and
/// which thread may call it. An exception becomes the status: a TransportError its own, InvalidJob SR_INVALID, any
/// other SR_INTERNAL. For a transport from two functions see transport/two_function_transport.hpp.

#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/border.hpp>
#include <shardrun/sdk/transport/clock.hpp>
#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/half.hpp>
#include <shardrun/sdk/transport/lone_group.hpp>
#include <shardrun/sdk/transport/op.hpp>
#include <shardrun/sdk/transport/queue.hpp>
#include <shardrun/sdk/transport/reduce.hpp>
#include <shardrun/sdk/transport/two_function_transport.hpp>
#include <shardrun/sdk/transport/validate.hpp>
#include <shardrun/sdk/transport/worker.hpp>
#include <shardrun/transport.h>

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardrun::sdk {

template <class Class>
concept TransportClass = requires(Class& transport, const Class& constant, const OpSpec& op, const Config& config,
                                  const sr_memory& memory, const GroupSpec& spec) {
  { constant.props() } -> std::same_as<Props>;
  { constant.query(op, std::uint32_t{}) } -> std::convertible_to<std::optional<OpInfo>>;
  transport.open(config);
  transport.close();
  { constant.wire_bytes() } -> std::convertible_to<std::uint64_t>;
  { transport.mem_register(memory) } -> std::convertible_to<std::uint64_t>;
  transport.mem_deregister(std::uint64_t{});
  { transport.group(spec) } -> std::convertible_to<std::unique_ptr<Group>>;
};

/// See sr_transport::share_first.
template <class Class>
concept SharesFirst = requires(Class& transport, std::span<std::byte> data) {
  transport.share_first(std::uint32_t{}, std::uint32_t{}, data);
};

/// See sr_transport::arrivals.
template <class Class>
concept KnowsArrivals = requires(const Class& transport) {
  { transport.arrivals(std::uint32_t{}) } -> std::same_as<Arrivals>;
};

namespace detail {

/// Like `guarded`, but a TransportError becomes its own status. Returns the status that `act` returns.
template <class Act>
std::int32_t guarded_transport(sr_error* error, Act act) noexcept {
  std::int32_t status = SR_OK;
  const std::int32_t failure = guarded(error, [&] {
    try {
      if constexpr (std::is_void_v<decltype(act())>) {
        act();
      } else {
        status = act();
      }
    } catch (const TransportError& known) {
      write_error(error, known.what(), known.awaited());
      status = known.status();
    }
  });
  return failure != SR_OK ? failure : status;
}

/// The object to which a group's handle points.
struct OpenGroup {
  std::unique_ptr<Group> group;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
};

/// The object of a handle. A handle is the object's address, so no look-up is needed.
template <class T>
[[nodiscard]] T& object_of(std::uint64_t handle) noexcept {
  return *reinterpret_cast<T*>(static_cast<std::uintptr_t>(handle));
}

template <class T>
[[nodiscard]] std::uint64_t handle_of(std::unique_ptr<T> object) noexcept {
  return static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(object.release()));
}

template <class Class>
concept IsConfigured = requires(Class& transport, const Setup& setup) {
  transport.configure(setup);
};

/// The functions of sr_transport, implemented by an author's class.
template <TransportClass Class>
struct TransportTable {
  static Class& self_of(void* self) noexcept { return Instance<Class>::object(self); }

  static std::int32_t props(void* self, sr_transport_props* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] { write(self_of(self).props(), *to); });
  }

  static std::int32_t op_query(void* self, const sr_op* op, std::uint32_t group_size, sr_op_info* to,
                               sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      const OpSpec spec = read(read_one(op), group_size);
      check(spec, group_size);
      const std::optional<OpInfo> info = self_of(self).query(spec, group_size);
      if (!info) {
        throw TransportError(SR_UNIMPLEMENTED, describe(spec) + " is not offered");
      }
      write(*info, *to);
    });
  }

  static std::int32_t open(void* self, const sr_transport_config* config, sr_error* error) noexcept {
    return guarded_transport(error, [&] { self_of(self).open(read(read_one(config))); });
  }

  static std::int32_t close(void* self, sr_error* error) noexcept {
    return guarded_transport(error, [&] { self_of(self).close(); });
  }

  static std::int32_t stats(void* self, sr_transport_stats* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] { to->wire_bytes = self_of(self).wire_bytes(); });
  }

  static std::int32_t mem_register(void* self, const sr_memory* memory, std::uint64_t* registration,
                                   sr_error* error) noexcept {
    return guarded_transport(error, [&] { *registration = self_of(self).mem_register(read_one(memory)); });
  }

  static std::int32_t mem_deregister(void* self, std::uint64_t registration, sr_error* error) noexcept {
    return guarded_transport(error, [&] { self_of(self).mem_deregister(registration); });
  }

  static std::int32_t group_create(void* self, const sr_group* group, std::uint64_t* handle, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      const GroupSpec spec = read(read_one(group));
      auto opened = std::make_unique<OpenGroup>();
      opened->rank = spec.rank;
      opened->size = spec.size();
      opened->group = self_of(self).group(spec);
      *handle = handle_of(std::move(opened));
    });
  }

  static std::int32_t group_error(void*, std::uint64_t group, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if (const std::optional<TransportError> failure = object_of<OpenGroup>(group).group->error()) {
        throw TransportError(*failure);
      }
    });
  }

  static std::int32_t group_abort(void*, std::uint64_t group, const char* reason, sr_error* error) noexcept {
    return guarded_transport(error, [&] { object_of<OpenGroup>(group).group->abort(reason != nullptr ? reason : ""); });
  }

  static std::int32_t group_destroy(void*, std::uint64_t group, sr_error* error) noexcept {
    return guarded_transport(error, [&] { delete &object_of<OpenGroup>(group); });
  }

  static std::int32_t op_prepare(void*, std::uint64_t group, const sr_op* ops, std::uint32_t op_count,
                                 std::uint32_t op_stride, std::int64_t deadline, std::uint64_t* handle,
                                 sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      OpenGroup& opened = object_of<OpenGroup>(group);
      std::vector<OpSpec> specs;
      for_each(ops, op_count, op_stride, [&](const sr_op& op) { specs.push_back(read(op, opened.size)); });
      validate(specs, opened.rank, opened.size);
      *handle = handle_of(opened.group->prepare(specs, Deadline::from_border(deadline)));
    });
  }

  static std::int32_t op_start(void*, std::uint64_t op, void* queue, std::int64_t deadline, sr_error* error) noexcept {
    return guarded_transport(error, [&] { object_of<Op>(op).start(queue, Deadline::from_border(deadline)); });
  }

  static std::int32_t op_test(void*, std::uint64_t op, sr_error* error) noexcept {
    return guarded_transport(error, [&] { return object_of<Op>(op).test() ? SR_OK : SR_PENDING; });
  }

  static std::int32_t op_wait(void*, std::uint64_t op, std::int64_t deadline, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if (object_of<Op>(op).wait(Deadline::from_border(deadline))) {
        return SR_OK;
      }
      write_error(error, "the deadline of the wait passed; the op goes on");
      return SR_TIMEOUT;
    });
  }

  static std::int32_t op_free(void*, std::uint64_t op, sr_error* error) noexcept {
    return guarded_transport(error, [&] { delete &object_of<Op>(op); });
  }

  static std::int32_t op_times(void*, std::uint64_t op, sr_op_times* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      const std::optional<OpTimes> times = object_of<Op>(op).times();
      if (!times) {
        throw TransportError(SR_UNIMPLEMENTED, "when the op was under way is not known");
      }
      write(*times, *to);
    });
  }

  static std::int32_t configure(void* self, const sr_transport_setup* setup, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if constexpr (IsConfigured<Class>) {
        self_of(self).configure(read(read_one(setup)));
      }
    });
  }

  static std::int32_t share_first(void* self, std::uint32_t rank, std::uint32_t world_size, void* data,
                                  std::uint64_t bytes, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if constexpr (SharesFirst<Class>) {
        self_of(self).share_first(rank, world_size, {static_cast<std::byte*>(data), bytes});
        return SR_OK;
      } else {
        return SR_UNIMPLEMENTED;
      }
    });
  }

  /// Throws TransportError{SR_INVALID} if the transport does not support queues of this kind.
  static Queue queue_of(void* self, const sr_queue* queue) {
    if (!self_of(self).props().takes(queue->kind)) {
      throw TransportError(SR_INVALID, "queues of kind " + std::to_string(queue->kind) + " are not offered");
    }
    return Queue(*queue);
  }

  static std::int32_t op_enqueue(void* self, std::uint64_t op, const sr_queue* queue, std::int64_t timeout,
                                 sr_error* error) noexcept {
    return guarded_transport(
        error, [&] { object_of<Op>(op).enqueue(queue_of(self, queue), std::chrono::nanoseconds(timeout)); });
  }

  static std::int32_t op_join(void* self, std::uint64_t op, const sr_queue* queue, sr_error* error) noexcept {
    return guarded_transport(error, [&] { object_of<Op>(op).join(queue_of(self, queue)); });
  }

  static std::int32_t arrivals(void* self, std::uint32_t rank, sr_arrivals* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if constexpr (KnowsArrivals<Class>) {
        write(self_of(self).arrivals(rank), *to);
        return SR_OK;
      } else {
        return SR_UNIMPLEMENTED;
      }
    });
  }

  static constexpr sr_transport functions = {sizeof(sr_transport),
                                             0,
                                             props,
                                             op_query,
                                             open,
                                             close,
                                             stats,
                                             mem_register,
                                             mem_deregister,
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
                                             SharesFirst<Class> ? share_first : nullptr,
                                             op_enqueue,
                                             op_join,
                                             KnowsArrivals<Class> ? arrivals : nullptr};
};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is
/// shardrun_transport_NAME.so. A fourth argument lists the plugin's names in other programs, as in sr_manifest.
#define SHARDRUN_EXPORT_TRANSPORT(Class, plugin_name, plugin_version, ...)                                   \
  SHARDRUN_EXPORT_PLUGIN(Class, SR_KIND_TRANSPORT, &shardrun::sdk::detail::TransportTable<Class>::functions, \
                         plugin_name, plugin_version, "" __VA_ARGS__)
