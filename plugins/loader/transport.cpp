#include "plugins/loader/transport.h"

#include <fmt/format.h>
#include <shardrun/sdk/collectives.hpp>

#include <ctime>
#include <utility>

#include "plugins/loader/option_values.h"
#include "plugins/loader/structs.h"
#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

bool is_complete(const sr_transport& all) noexcept {
  return all.props != nullptr && all.op_query != nullptr && all.open != nullptr && all.close != nullptr &&
         all.stats != nullptr && all.mem_register != nullptr && all.mem_deregister != nullptr &&
         all.group_create != nullptr && all.group_error != nullptr && all.group_abort != nullptr &&
         all.group_destroy != nullptr && all.op_prepare != nullptr && all.op_start != nullptr &&
         all.op_test != nullptr && all.op_wait != nullptr && all.op_free != nullptr;
}

}  // namespace

std::int64_t transport_clock() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TransportState::TransportState(Plugin opened, Directories searched, LogSink sink)
    : plugin(std::move(opened)), directories(std::move(searched)), log(std::move(sink)) {}

TransportState::~TransportState() {
  if (!is_open) {
    return;
  }
  sr_error error = empty_error();
  for (auto registration = registrations.rbegin(); registration != registrations.rend(); ++registration) {
    (void)functions.mem_deregister(self, *registration, &error);
  }
  (void)functions.close(self, &error);
}

std::string TransportState::what(std::string_view doing) const {
  return fmt::format("transport {}, {}", plugin.manifest().name, doing);
}

std::optional<OpInfo> TransportState::offered(const sdk::OpSpec& op, std::uint32_t members) const {
  const std::vector<sdk::OpSpec> specs = {op};
  const RawOps raw(specs);
  sr_op_info info{};
  info.struct_size = sizeof(info);
  bool is_offered = true;
  call(fmt::format("asked for {}", sdk::describe(op)), [&](sr_error* error) {
    const std::int32_t status = functions.op_query(self, raw.data(), members, &info, error);
    is_offered = status != SR_UNIMPLEMENTED || !sdk::find_opcode(op.opcode)->collective;
    return is_offered ? status : SR_OK;
  });
  return is_offered ? std::optional(OpInfo{.flags = info.flags, .scratch_bytes = info.scratch_bytes}) : std::nullopt;
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
  if (!is_complete(state->functions)) {
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
  const sdk::OpSpec spec = spec_of(op);
  try {
    sdk::check(spec, members);
  } catch (const sdk::TransportError& invalid) {
    fail(state_->what("asked for an op"), invalid.status(), invalid.what());
  }
  const std::optional<OpInfo> info = state_->offered(spec, members);
  return info ? *info : OpInfo{.flags = SR_OP_INFO_ASYNC, .scratch_bytes = sdk::scratch_bytes_of(spec, members)};
}

void Transport::open(const TransportConfig& config, TransportHost& host) {
  TransportState& state = *state_;
  const OptionValues values = with_defaults(state.plugin.options(), config.options);
  const std::vector<sr_option_value> options = raw_options(values);
  state.host = &host;
  state.raw_host = raw_host(state);
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
  state_->call(fmt::format("registering {} bytes of memory", bytes), [&](sr_error* error) {
    return state_->functions.mem_register(state_->self, &memory, &registration, error);
  });
  state_->registrations.push_back(registration);
  return registration;
}

TransportGroup Transport::group(const GroupRequest& request) {
  return TransportGroup(std::make_unique<TransportGroup::State>(state_, request));
}

std::uint64_t Transport::wire_bytes() const {
  sr_transport_stats stats{};
  stats.struct_size = sizeof(stats);
  state_->call("asked for its statistics",
               [&](sr_error* error) { return state_->functions.stats(state_->self, &stats, error); });
  return stats.wire_bytes;
}

}  // namespace shardrun::plugins
