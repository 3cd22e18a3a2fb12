#include "plugins/loader/transport.h"

#include <fmt/format.h>
#include <shardrun/transport.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <list>
#include <utility>

#include "core/base/error.h"
#include "plugins/loader/call.h"
#include "plugins/loader/structs.h"

namespace shardrun::plugins {
namespace {

ErrorCode code_of(std::int32_t status) noexcept {
  switch (status) {
    case SR_TIMEOUT: return ErrorCode::timeout;
    case SR_ABORTED: return ErrorCode::aborted;
    case SR_PEER_LOST: return ErrorCode::peer_lost;
    default: return ErrorCode::transport;
  }
}

sr_error empty_error() noexcept {
  sr_error error{};
  error.struct_size = sizeof(error);
  return error;
}

[[noreturn]] void fail(std::string_view what, std::int32_t status, const sr_error& error) {
  const std::string text = text_of(error);
  throw Error(code_of(status),
              fmt::format("{}: {}", what, text.empty() ? fmt::format("status {}, and no reason given", status) : text));
}

/// Copies what fits with its end.
void put_text(sr_error* error, std::string_view text) noexcept {
  if (error != nullptr && error->struct_size >= SR_ERROR_SIZE_1_0) {
    const std::size_t length = std::min(text.size(), sizeof(error->text) - 1);
    std::copy_n(text.data(), length, error->text);
    error->text[length] = '\0';
  }
}

std::int32_t status_of(ErrorCode code) noexcept {
  switch (code) {
    case ErrorCode::timeout: return SR_TIMEOUT;
    case ErrorCode::aborted: return SR_ABORTED;
    case ErrorCode::peer_lost: return SR_PEER_LOST;
    default: return SR_INTERNAL;
  }
}

/// Runs one of the host's functions for a plugin.
template <class Act>
std::int32_t serve(sr_error* error, Act act) noexcept {
  try {
    return act();
  } catch (const Error& failure) {
    put_text(error, failure.message());
    return status_of(failure.code());
  } catch (const std::exception& failure) {
    put_text(error, failure.what());
    return SR_INTERNAL;
  }
}

sr_buffer raw_buffer(const HostBuffer& buffer) noexcept {
  sr_buffer raw{};
  raw.struct_size = sizeof(raw);
  raw.kind = SR_MEMORY_HOST;
  raw.data = buffer.data;
  raw.bytes = buffer.bytes;
  raw.registration = buffer.registration;
  return raw;
}

/// Requests in the form that crosses the border; it points into them.
class RawOps {
 public:
  explicit RawOps(const std::vector<OpRequest>& requests) : buffers_(requests.size() * 3), ops_(requests.size()) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      fill(requests[i], ops_[i], &buffers_[3 * i]);
    }
  }
  RawOps(const RawOps&) = delete;
  RawOps& operator=(const RawOps&) = delete;

  [[nodiscard]] const sr_op* data() const noexcept { return ops_.data(); }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(ops_.size()); }

 private:
  static void fill(const OpRequest& request, sr_op& op, sr_buffer* buffers) {
    op.struct_size = sizeof(op);
    op.opcode = request.opcode;
    op.dtype = request.dtype;
    op.reduction = request.reduction;
    op.peer = request.peer;
    op.flags = request.flags;
    op.id = request.id;
    op.count = request.count;
    op.send_counts = request.send_counts.empty() ? nullptr : request.send_counts.data();
    op.recv_counts = request.recv_counts.empty() ? nullptr : request.recv_counts.data();
    const auto take = [&](const std::optional<HostBuffer>& buffer, const sr_buffer*& to) {
      if (buffer) {
        *buffers = raw_buffer(*buffer);
        to = buffers++;
      }
    };
    take(request.send, op.send);
    take(request.recv, op.recv);
    take(request.scratch, op.scratch);
    op.label = request.label.c_str();
  }

  std::vector<sr_buffer> buffers_;
  std::vector<sr_op> ops_;
};

std::vector<sr_option_value> raw_options(const OptionValues& values) {
  std::vector<sr_option_value> raw;
  for (const auto& [name, value] : values) {
    sr_option_value& option = raw.emplace_back();
    option.struct_size = sizeof(option);
    option.name = name.c_str();
    if (const auto* boolean = std::get_if<bool>(&value)) {
      option.type = SR_OPTION_BOOLEAN;
      option.integer = *boolean ? 1 : 0;
    } else if (const auto* integer = std::get_if<std::int64_t>(&value)) {
      option.type = SR_OPTION_INTEGER;
      option.integer = *integer;
    } else if (const auto* number = std::get_if<double>(&value)) {
      option.type = SR_OPTION_NUMBER;
      option.number = *number;
    } else {
      option.type = SR_OPTION_TEXT;
      option.text = std::get<std::string>(value).c_str();
    }
  }
  return raw;
}

}  // namespace

std::int64_t transport_clock() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

struct TransportState {
  TransportState(Plugin opened, Directories searched, LogSink sink)
      : plugin(std::move(opened)), directories(std::move(searched)), log(std::move(sink)) {}
  TransportState(const TransportState&) = delete;
  TransportState& operator=(const TransportState&) = delete;
  ~TransportState() {
    if (is_open) {
      sr_error error = empty_error();
      (void)functions.close(self, &error);
    }
  }

  [[nodiscard]] std::string what(std::string_view doing) const {
    return fmt::format("transport {}, {}", plugin.manifest().name, doing);
  }

  template <class Call>
  void call(std::string_view doing, Call act) const {
    sr_error error = empty_error();
    const std::int32_t status = act(&error);
    if (status != SR_OK) {
      fail(what(doing), status, error);
    }
  }

  // Wrapped transports are closed after the one that wraps them: members die in reverse order.
  std::list<Plugin> wrapped;
  Plugin plugin;
  Directories directories;
  LogSink log;
  sr_transport functions{};
  void* self = nullptr;
  TransportHost* host = nullptr;
  sr_transport_host raw_host{};
  bool is_open = false;
};

struct TransportGroup::State {
  std::shared_ptr<TransportState> transport;
  std::uint64_t handle = 0;
  std::string name;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (handle != 0) {
      sr_error error = empty_error();
      (void)transport->functions.group_destroy(transport->self, handle, &error);
    }
  }
};

struct TransportOp::State {
  const sr_transport* functions = nullptr;
  void* self = nullptr;
  std::uint64_t handle = 0;
  std::string what;
  std::shared_ptr<TransportState> keeps;

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (handle != 0) {
      sr_error error = empty_error();
      (void)functions->op_free(self, handle, &error);
    }
  }
};

TransportOp::TransportOp(std::unique_ptr<State> state) : state_(std::move(state)) {}
TransportOp::TransportOp(TransportOp&& other) noexcept = default;
TransportOp& TransportOp::operator=(TransportOp&& other) noexcept = default;
TransportOp::~TransportOp() = default;

void TransportOp::start(std::int64_t deadline) {
  sr_error error = empty_error();
  const std::int32_t status = state_->functions->op_start(state_->self, state_->handle, nullptr, deadline, &error);
  if (status != SR_OK) {
    fail(state_->what, status, error);
  }
}

bool TransportOp::test() {
  sr_error error = empty_error();
  const std::int32_t status = state_->functions->op_test(state_->self, state_->handle, &error);
  if (status != SR_OK && status != SR_PENDING) {
    fail(state_->what, status, error);
  }
  return status == SR_OK;
}

bool TransportOp::wait(std::int64_t deadline) {
  sr_error error = empty_error();
  const std::int32_t status = state_->functions->op_wait(state_->self, state_->handle, deadline, &error);
  if (status == SR_TIMEOUT && state_->functions->op_test(state_->self, state_->handle, &error) == SR_PENDING) {
    return false;
  }
  if (status != SR_OK) {
    fail(state_->what, status, error);
  }
  return true;
}

TransportGroup::TransportGroup(std::unique_ptr<State> state) : state_(std::move(state)) {}
TransportGroup::TransportGroup(TransportGroup&& other) noexcept = default;
TransportGroup& TransportGroup::operator=(TransportGroup&& other) noexcept = default;
TransportGroup::~TransportGroup() = default;

TransportOp TransportGroup::prepare(const std::vector<OpRequest>& ops, std::int64_t deadline) {
  const RawOps raw(ops);
  const TransportState& transport = *state_->transport;
  auto op = std::make_unique<TransportOp::State>();
  op->functions = &transport.functions;
  op->self = transport.self;
  op->what = transport.what(fmt::format("group {}, {}", state_->name, ops.empty() ? "" : ops.front().label));
  op->keeps = state_->transport;
  transport.call(fmt::format("group {}, preparing {}", state_->name, ops.empty() ? "" : ops.front().label),
                 [&](sr_error* error) {
                   return transport.functions.op_prepare(transport.self, state_->handle, raw.data(), raw.size(),
                                                         sizeof(sr_op), deadline, &op->handle, error);
                 });
  return TransportOp(std::move(op));
}

void TransportGroup::abort(const std::string& reason) noexcept {
  sr_error error = empty_error();
  (void)state_->transport->functions.group_abort(state_->transport->self, state_->handle, reason.c_str(), &error);
}

std::optional<std::string> TransportGroup::error() const {
  sr_error error = empty_error();
  const std::int32_t status = state_->transport->functions.group_error(state_->transport->self, state_->handle, &error);
  return status == SR_OK ? std::nullopt : std::optional(text_of(error));
}

Transport::Transport(std::shared_ptr<TransportState> state) : state_(std::move(state)) {}
Transport::Transport(Transport&& other) noexcept = default;
Transport& Transport::operator=(Transport&& other) noexcept = default;
Transport::~Transport() = default;

Transport Transport::load(const Directories& directories, std::string_view name, LogSink log) {
  auto state =
      std::make_shared<TransportState>(Plugin::open(directories, PluginKind::transport, name, log), directories, log);
  const sr_plugin& table = state->plugin.table();
  const std::string what = fmt::format("the function table of {}", state->plugin.path().string());
  state->functions = read_struct<sr_transport>(table.functions, SR_TRANSPORT_SIZE_1_0, what);
  const sr_transport& all = state->functions;
  const bool complete = all.props != nullptr && all.op_query != nullptr && all.open != nullptr &&
                        all.close != nullptr && all.stats != nullptr && all.mem_register != nullptr &&
                        all.mem_deregister != nullptr && all.group_create != nullptr && all.group_error != nullptr &&
                        all.group_abort != nullptr && all.group_destroy != nullptr && all.op_prepare != nullptr &&
                        all.op_start != nullptr && all.op_test != nullptr && all.op_wait != nullptr &&
                        all.op_free != nullptr;
  if (!complete) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} lacks functions: a transport has all of shardrun/transport.h", what));
  }
  state->self = table.self;
  return Transport(std::move(state));
}

const Manifest& Transport::manifest() const noexcept { return state_->plugin.manifest(); }
const std::vector<OptionSpec>& Transport::options() const noexcept { return state_->plugin.options(); }

TransportProps Transport::props() const {
  sr_transport_props props{};
  props.struct_size = sizeof(props);
  state_->call("asked for its properties",
               [&](sr_error* error) { return state_->functions.props(state_->self, &props, error); });
  return {.same_host_only = (props.flags & SR_TRANSPORT_SAME_HOST) != 0,
          .moves_host_memory = (props.memory_kinds & (1U << SR_MEMORY_HOST)) != 0};
}

OpInfo Transport::query(const OpRequest& op, std::uint32_t members) const {
  const std::vector<OpRequest> ops = {op};
  const RawOps raw(ops);
  sr_op_info info{};
  info.struct_size = sizeof(info);
  state_->call(fmt::format("asked for {}", op.label), [&](sr_error* error) {
    return state_->functions.op_query(state_->self, raw.data(), members, &info, error);
  });
  return {.flags = info.flags, .scratch_bytes = info.scratch_bytes};
}

void Transport::open(const TransportConfig& config, TransportHost& host) {
  TransportState& state = *state_;
  state.host = &host;
  state.raw_host = {};
  state.raw_host.struct_size = sizeof(state.raw_host);
  state.raw_host.self = &state;
  state.raw_host.now = [](void*) { return transport_clock(); };
  state.raw_host.aborted = [](void* self) {
    return static_cast<TransportState*>(self)->host->aborted() ? std::uint32_t{1} : std::uint32_t{0};
  };
  state.raw_host.store_set = [](void* self, const char* key, const void* value, std::uint64_t bytes, sr_error* error) {
    return serve(error, [&] {
      static_cast<TransportState*>(self)->host->store_set(key, std::string(static_cast<const char*>(value), bytes));
      return SR_OK;
    });
  };
  state.raw_host.store_get = [](void* self, const char* key, void* value, std::uint64_t* bytes, std::int64_t deadline,
                                sr_error* error) {
    return serve(error, [&] {
      const std::string found = static_cast<TransportState*>(self)->host->store_get(key, deadline);
      if (found.size() > *bytes) {
        put_text(error,
                 fmt::format("key '{}' holds {} bytes, more than the {} there is room for", key, found.size(), *bytes));
        return SR_INVALID;
      }
      std::copy(found.begin(), found.end(), static_cast<char*>(value));
      *bytes = found.size();
      return SR_OK;
    });
  };
  state.raw_host.open_transport = [](void* self, const char* name, const sr_plugin** plugin, sr_error* error) {
    return serve(error, [&] {
      TransportState& wrapper = *static_cast<TransportState*>(self);
      wrapper.wrapped.push_back(Plugin::open(wrapper.directories, PluginKind::transport, name, wrapper.log));
      *plugin = &wrapper.wrapped.back().table();
      return SR_OK;
    });
  };
  const std::vector<sr_option_value> options = raw_options(config.options);
  sr_transport_config raw{};
  raw.struct_size = sizeof(raw);
  raw.rank = config.rank;
  raw.world_size = config.world_size;
  raw.local_rank = config.local_rank;
  raw.local_world_size = config.local_world_size;
  raw.host = &state.raw_host;
  raw.job = config.job.c_str();
  raw.address = config.address.c_str();
  raw.options = options.data();
  raw.option_count = static_cast<std::uint32_t>(options.size());
  raw.option_stride = sizeof(sr_option_value);
  raw.deadline = config.deadline;
  state.call("opening", [&](sr_error* error) { return state.functions.open(state.self, &raw, error); });
  state.is_open = true;
}

std::uint64_t Transport::register_memory(void* data, std::uint64_t bytes, int descriptor) {
  sr_memory memory{};
  memory.struct_size = sizeof(memory);
  memory.kind = SR_MEMORY_HOST;
  memory.data = data;
  memory.bytes = bytes;
  memory.descriptor = descriptor;
  std::uint64_t registration = 0;
  state_->call("registering the arena", [&](sr_error* error) {
    return state_->functions.mem_register(state_->self, &memory, &registration, error);
  });
  return registration;
}

TransportGroup Transport::group(const GroupRequest& request) {
  sr_group raw{};
  raw.struct_size = sizeof(raw);
  raw.rank = request.rank;
  raw.members = request.members.data();
  raw.member_count = static_cast<std::uint32_t>(request.members.size());
  raw.name = request.name.c_str();
  raw.id = request.id;
  raw.deadline = request.deadline;
  auto group = std::make_unique<TransportGroup::State>();
  group->transport = state_;
  group->name = request.name;
  state_->call(fmt::format("connecting group {}", request.name), [&](sr_error* error) {
    return state_->functions.group_create(state_->self, &raw, &group->handle, error);
  });
  return TransportGroup(std::move(group));
}

std::uint64_t Transport::wire_bytes() const {
  sr_transport_stats stats{};
  stats.struct_size = sizeof(stats);
  state_->call("asked for its statistics",
               [&](sr_error* error) { return state_->functions.stats(state_->self, &stats, error); });
  return stats.wire_bytes;
}

}  // namespace shardrun::plugins
