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
/// other SR_INTERNAL. For a transport from two functions see two_function_transport.hpp.

#include <shardrun/sdk/clock.hpp>
#include <shardrun/sdk/op.hpp>
#include <shardrun/sdk/plugin.hpp>
#include <shardrun/sdk/queue.hpp>
#include <shardrun/transport.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shardrun::sdk {

// DEADLINES ARE NOT TIMES OF CLOCK_MONOTONIC. Here, and in everything that an author's class is given, they are times
// of steady_now(), which falls behind that clock whenever the process is suspended. Compare them with steady_now(),
// wait in slices of slice_until(deadline), and pass them to another plugin or to the host through to_border(deadline).
// A `wait_until(std::chrono::steady_clock::time_point(nanoseconds(deadline)))` compiles and is wrong: after a
// suspension it ends too early.

/// A prepared op or batch. Its destructor is op_free.
class Op {
 public:
  Op() = default;
  Op(const Op&) = delete;
  Op& operator=(const Op&) = delete;
  virtual ~Op() = default;

  virtual void start(void* queue, std::int64_t deadline) = 0;
  [[nodiscard]] virtual bool test() = 0;
  /// Returns false where `deadline` passed first; the op continues. Throws TransportError{SR_TIMEOUT} where the op
  /// failed by its own deadline.
  [[nodiscard]] virtual bool wait(std::int64_t deadline) = 0;
  /// For transports whose Props have kinds of queues: sr_transport::op_enqueue and op_join.
  virtual void enqueue(const Queue&, std::int64_t /*timeout*/) { refuse_queues(); }
  virtual void join(const Queue&) { refuse_queues(); }
  /// Of a complete op. Nothing where it is not known.
  [[nodiscard]] virtual std::optional<OpTimes> times() const { return std::nullopt; }

 private:
  [[noreturn]] static void refuse_queues() { throw TransportError(SR_UNIMPLEMENTED, "ops in queues are not offered"); }
};

/// A group of ranks. Its destructor is group_destroy. Any thread calls abort and error.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  virtual ~Group() = default;

  /// REQUIRES: the ops have passed `validate`.
  [[nodiscard]] virtual std::unique_ptr<Op> prepare(std::span<const OpSpec> ops, std::int64_t deadline) = 0;
  virtual void abort(std::string_view reason) noexcept = 0;
  /// Why the group failed; nothing where it has not.
  [[nodiscard]] virtual std::optional<TransportError> error() = 0;
};

/// sr_transport_props.
struct Props {
  std::uint32_t flags = 0;  ///< SR_TRANSPORT_...
  std::uint32_t memory_kinds = std::uint32_t{1} << SR_MEMORY_HOST;
  /// That Op::enqueue and Op::join take: 1 << SR_QUEUE_... for each. A transport around another whose ops lack these
  /// functions sets it to 0.
  std::uint32_t queue_kinds = 0;

  [[nodiscard]] bool has(std::uint32_t flag) const noexcept { return (flags & flag) != 0; }
  /// `kind`: SR_MEMORY_...
  [[nodiscard]] bool moves(std::uint32_t kind) const noexcept { return kind < 32 && (memory_kinds >> kind & 1U) != 0; }
  /// `kind`: SR_QUEUE_...
  [[nodiscard]] bool takes(std::uint32_t kind) const noexcept { return kind < 32 && (queue_kinds >> kind & 1U) != 0; }

  bool operator==(const Props&) const = default;
};

/// sr_group.
struct GroupSpec {
  std::uint32_t rank = 0;  ///< index into `members`
  std::vector<std::uint32_t> members;
  std::string name;
  std::uint64_t id = 0;
  std::int64_t deadline = INT64_MAX;

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(members.size()); }
  /// "member 1 (rank 3)", for messages.
  [[nodiscard]] std::string name_of(std::uint32_t member) const {
    return "member " + std::to_string(member) + " (rank " + std::to_string(members[member]) + ")";
  }

  bool operator==(const GroupSpec&) const = default;
};

/// Wraps sr_transport_host. Copyable. Valid until the transport is closed. Any thread. Failures throw TransportError.
class TransportHost {
 public:
  TransportHost() = default;
  explicit TransportHost(const sr_transport_host* host) : host_(host) {}

  /// steady_now(), by the host's clock.
  [[nodiscard]] std::int64_t now() const noexcept { return host_->now(host_->self) - detail::running_clock().behind(); }
  /// Whether the job is to end.
  [[nodiscard]] bool aborted() const noexcept { return host_->aborted(host_->self) != 0; }

  void store_set(const std::string& key, std::string_view value) const {
    call(
        [&](sr_error* error) { return host_->store_set(host_->self, key.c_str(), value.data(), value.size(), error); });
  }

  /// Waits until the key is set. Its value has at most `capacity` bytes. Throws SR_ABORTED soon after the job is to
  /// end.
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t deadline,
                                      std::size_t capacity = 4096) const {
    std::string value(capacity, '\0');
    const std::int64_t begin = now();
    for (;;) {
      std::uint64_t bytes = capacity;
      const std::int64_t until = to_border(std::min(deadline, now() + store_check_interval));
      bool is_slice_over = false;
      call([&](sr_error* error) {
        const std::int32_t status = host_->store_get(host_->self, key.c_str(), value.data(), &bytes, until, error);
        // A host that gives up before `until` has its own reason, which is passed on.
        is_slice_over = status == SR_TIMEOUT && host_->now(host_->self) >= until;
        return is_slice_over ? SR_OK : status;
      });
      if (!is_slice_over) {
        value.resize(bytes);
        return value;
      }
      const std::int64_t end = now();
      if (end >= deadline) {
        throw TransportError(SR_TIMEOUT, "waited " + std::to_string((end - begin) / 1'000'000) + " ms for key '" + key +
                                             "' of the job's store, which no rank has set");
      }
      if (aborted()) {
        throw TransportError(SR_ABORTED,
                             "the job ends; this rank was waiting for key '" + key + "' of the job's store");
      }
    }
  }

  /// A new transport, not opened yet, for one that wraps another.
  [[nodiscard]] const sr_plugin& open_transport(const std::string& name) const {
    const sr_plugin* plugin = nullptr;
    call([&](sr_error* error) { return host_->open_transport(host_->self, name.c_str(), &plugin, error); });
    return *plugin;
  }

  /// The job's options for a transport opened so, to pass to its `open`. Valid until this transport is closed.
  /// REQUIRES: a host of ABI 1.2.
  [[nodiscard]] RawOptions transport_options(const std::string& name) const {
    RawOptions options;
    call([&](sr_error* error) {
      return host_->transport_options(host_->self, name.c_str(), &options.data, &options.count, &options.stride, error);
    });
    return options;
  }

  [[nodiscard]] const sr_transport_host* raw() const noexcept { return host_; }

 private:
  /// How often a wait in the store checks whether the job ends.
  static constexpr std::int64_t store_check_interval = longest_gap.count() / 2;

  template <class Call>
  static void call(Call act) {
    sr_error error{};
    error.struct_size = sizeof(error);
    const std::int32_t status = act(&error);
    if (status != SR_OK) {
      throw TransportError(status, error);
    }
  }

  const sr_transport_host* host_ = nullptr;
};

/// sr_transport_config.
struct Config {
  std::uint32_t rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 1;
  std::string job;
  std::string address;
  OptionValues options;
  std::int64_t deadline = INT64_MAX;
  std::vector<std::uint32_t> machines = {};  ///< of each rank of the world; empty: not known
  std::optional<std::array<std::uint8_t, 32>> secret = std::nullopt;
  TransportHost host;
};

/// sr_transport_setup.
struct Setup {
  std::uint32_t world_size = 0;  ///< 0: not known
  OptionValues options;
  TransportHost host;
};

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

namespace detail {

/// As `guarded`, for functions that return a status and may throw TransportError.
template <class Act>
std::int32_t guarded_transport(sr_error* error, Act act) noexcept {
  try {
    return act();
  } catch (const TransportError& failure) {
    write_error(error, failure.what(), failure.awaited());
    return failure.status();
  } catch (const InvalidJob& invalid) {
    write_error(error, invalid.what());
    return SR_INVALID;
  } catch (const std::exception& failure) {
    write_error(error, failure.what());
  } catch (...) {
    write_error(error, "an exception of an unknown type was thrown");
  }
  return SR_INTERNAL;
}

// Values to and from their C form, which points into the value. Deadlines stay as they are: each side counts them by
// its own clock, and converts its own.

[[nodiscard]] inline Props read(const sr_transport_props& raw) noexcept {
  return {raw.flags, raw.memory_kinds != 0 ? raw.memory_kinds : Props().memory_kinds, raw.queue_kinds};
}

inline void write(const Props& props, sr_transport_props& to) noexcept {
  to.flags = props.flags;
  to.memory_kinds = props.memory_kinds;
  if (SR_HAS(&to, sr_transport_props, queue_kinds)) {
    to.queue_kinds = props.queue_kinds;
  }
}

[[nodiscard]] inline GroupSpec read(const sr_group& raw) {
  return {.rank = raw.rank,
          .members = {raw.members, raw.members + raw.member_count},
          .name = raw.name != nullptr ? raw.name : "",
          .id = raw.id,
          .deadline = raw.deadline};
}

[[nodiscard]] inline sr_group write(const GroupSpec& group) noexcept {
  return {.struct_size = sizeof(sr_group),
          .rank = group.rank,
          .members = group.members.data(),
          .member_count = group.size(),
          .reserved = 0,
          .name = group.name.c_str(),
          .id = group.id,
          .deadline = group.deadline};
}

[[nodiscard]] inline Setup read(const sr_transport_setup& raw) {
  return {.world_size = raw.world_size,
          .options = OptionValues(raw.options, raw.option_count, raw.option_stride),
          .host = TransportHost(raw.host)};
}

/// `options`: those of `setup`.
[[nodiscard]] inline sr_transport_setup write(const Setup& setup, const RawOptions& options) noexcept {
  return {.struct_size = sizeof(sr_transport_setup),
          .world_size = setup.world_size,
          .options = options.data,
          .option_count = options.count,
          .option_stride = options.stride,
          .host = setup.host.raw()};
}

[[nodiscard]] inline Config read(const sr_transport_config& raw) {
  Config config = {.rank = raw.rank,
                   .world_size = raw.world_size,
                   .local_rank = raw.local_rank,
                   .local_world_size = raw.local_world_size,
                   .job = raw.job,
                   .address = raw.address,
                   .options = OptionValues(raw.options, raw.option_count, raw.option_stride),
                   .deadline = raw.deadline,
                   .host = TransportHost(raw.host)};
  if (raw.machines != nullptr) {
    config.machines.assign(raw.machines, raw.machines + raw.world_size);
  }
  if (raw.secret != nullptr) {
    std::copy_n(raw.secret, config.secret.emplace().size(), config.secret->begin());
  }
  return config;
}

/// `options`: those of `config`.
[[nodiscard]] inline sr_transport_config write(const Config& config, const RawOptions& options) noexcept {
  return {.struct_size = sizeof(sr_transport_config),
          .rank = config.rank,
          .world_size = config.world_size,
          .local_rank = config.local_rank,
          .local_world_size = config.local_world_size,
          .option_stride = options.stride,
          .host = config.host.raw(),
          .job = config.job.c_str(),
          .address = config.address.c_str(),
          .options = options.data,
          .option_count = options.count,
          .reserved = 0,
          .deadline = config.deadline,
          .machines = config.machines.empty() ? nullptr : config.machines.data(),
          .secret = config.secret ? config.secret->data() : nullptr};
}

/// What a group's handle points to.
struct OpenGroup {
  std::unique_ptr<Group> group;
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
};

/// A handle is the address of its object, so an op needs no look-up.
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

/// The functions of sr_transport over an author's class.
template <TransportClass Class>
struct TransportTable {
  static Class& self_of(void* self) noexcept { return Instance<Class>::object(self); }

  static std::int32_t props(void* self, sr_transport_props* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      write(self_of(self).props(), *to);
      return SR_OK;
    });
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
      return SR_OK;
    });
  }

  static std::int32_t open(void* self, const sr_transport_config* config, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      Config given = read(read_one(config));
      given.deadline = from_border(given.deadline);
      self_of(self).open(given);
      return SR_OK;
    });
  }

  static std::int32_t close(void* self, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      self_of(self).close();
      return SR_OK;
    });
  }

  static std::int32_t stats(void* self, sr_transport_stats* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      to->wire_bytes = self_of(self).wire_bytes();
      return SR_OK;
    });
  }

  static std::int32_t mem_register(void* self, const sr_memory* memory, std::uint64_t* registration,
                                   sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      *registration = self_of(self).mem_register(read_one(memory));
      return SR_OK;
    });
  }

  static std::int32_t mem_deregister(void* self, std::uint64_t registration, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      self_of(self).mem_deregister(registration);
      return SR_OK;
    });
  }

  static std::int32_t group_create(void* self, const sr_group* group, std::uint64_t* handle, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      GroupSpec spec = read(read_one(group));
      spec.deadline = from_border(spec.deadline);
      auto opened = std::make_unique<OpenGroup>();
      opened->rank = spec.rank;
      opened->size = spec.size();
      opened->group = self_of(self).group(spec);
      *handle = handle_of(std::move(opened));
      return SR_OK;
    });
  }

  static std::int32_t group_error(void*, std::uint64_t group, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if (const std::optional<TransportError> failure = object_of<OpenGroup>(group).group->error()) {
        throw TransportError(*failure);
      }
      return SR_OK;
    });
  }

  static std::int32_t group_abort(void*, std::uint64_t group, const char* reason, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      object_of<OpenGroup>(group).group->abort(reason != nullptr ? reason : "");
      return SR_OK;
    });
  }

  static std::int32_t group_destroy(void*, std::uint64_t group, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      delete &object_of<OpenGroup>(group);
      return SR_OK;
    });
  }

  static std::int32_t op_prepare(void*, std::uint64_t group, const sr_op* ops, std::uint32_t op_count,
                                 std::uint32_t op_stride, std::int64_t deadline, std::uint64_t* handle,
                                 sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      OpenGroup& opened = object_of<OpenGroup>(group);
      std::vector<OpSpec> specs;
      for_each(ops, op_count, op_stride, [&](const sr_op& op) { specs.push_back(read(op, opened.size)); });
      validate(specs, opened.rank, opened.size);
      *handle = handle_of(opened.group->prepare(specs, from_border(deadline)));
      return SR_OK;
    });
  }

  static std::int32_t op_start(void*, std::uint64_t op, void* queue, std::int64_t deadline, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      object_of<Op>(op).start(queue, from_border(deadline));
      return SR_OK;
    });
  }

  static std::int32_t op_test(void*, std::uint64_t op, sr_error* error) noexcept {
    return guarded_transport(error, [&] { return object_of<Op>(op).test() ? SR_OK : SR_PENDING; });
  }

  static std::int32_t op_wait(void*, std::uint64_t op, std::int64_t deadline, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if (!object_of<Op>(op).wait(from_border(deadline))) {
        write_error(error, "the deadline of the wait passed; the op goes on");
        return SR_TIMEOUT;
      }
      return SR_OK;
    });
  }

  static std::int32_t op_free(void*, std::uint64_t op, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      delete &object_of<Op>(op);
      return SR_OK;
    });
  }

  static std::int32_t op_times(void*, std::uint64_t op, sr_op_times* to, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      const std::optional<OpTimes> times = object_of<Op>(op).times();
      if (!times) {
        throw TransportError(SR_UNIMPLEMENTED, "when the op was under way is not known");
      }
      write(*times, *to);
      return SR_OK;
    });
  }

  static std::int32_t configure(void* self, const sr_transport_setup* setup, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      if constexpr (IsConfigured<Class>) {
        self_of(self).configure(read(read_one(setup)));
      }
      return SR_OK;
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

  /// Throws where the transport does not take queues of this kind.
  static Queue queue_of(void* self, const sr_queue* queue) {
    if (!self_of(self).props().takes(queue->kind)) {
      throw TransportError(SR_INVALID, "queues of kind " + std::to_string(queue->kind) + " are not offered");
    }
    return Queue(*queue);
  }

  static std::int32_t op_enqueue(void* self, std::uint64_t op, const sr_queue* queue, std::int64_t timeout,
                                 sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      object_of<Op>(op).enqueue(queue_of(self, queue), timeout);
      return SR_OK;
    });
  }

  static std::int32_t op_join(void* self, std::uint64_t op, const sr_queue* queue, sr_error* error) noexcept {
    return guarded_transport(error, [&] {
      object_of<Op>(op).join(queue_of(self, queue));
      return SR_OK;
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
                                             op_join};
};

}  // namespace detail

}  // namespace shardrun::sdk

/// Exports `Class` as the plugin `plugin_name`. Use it once, at namespace scope. The file is
/// shardrun_transport_NAME.so. A fourth argument lists its names in other programs, separated by spaces, as in
/// sr_manifest.
#define SHARDRUN_EXPORT_TRANSPORT(Class, plugin_name, plugin_version, ...)                                      \
  const sr_manifest shardrun_manifest_v1 = {sizeof(sr_manifest), SR_MAGIC,    SR_ABI_MAJOR,   SR_ABI_MINOR,  0, \
                                            SR_KIND_TRANSPORT,   plugin_name, plugin_version, "" __VA_ARGS__};  \
  int32_t shardrun_open_v1(const sr_host* host, sr_error* error, sr_plugin** plugin) {                          \
    return shardrun::sdk::detail::open_instance<Class>(                                                         \
        host, SR_KIND_TRANSPORT, &shardrun::sdk::detail::TransportTable<Class>::functions, error, plugin);      \
  }
