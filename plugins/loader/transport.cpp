#include "plugins/loader/transport.h"

#include <fmt/format.h>
#include <shardrun/sdk/transport/border.hpp>
#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/validate.hpp>

#include <algorithm>
#include <ctime>
#include <utility>

#include "plugins/loader/composed.h"
#include "plugins/loader/find.h"
#include "plugins/loader/raw_attributes.h"
#include "plugins/loader/structs.h"
#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

sr_transport_setup raw_setup(const TransportState& state, const std::vector<sr_option_value>& options) {
  const sdk::Setup setup{
      .world_size = state.setup.world_size, .options = {}, .host = sdk::TransportHost(&state.raw_host)};
  return sdk::detail::write(setup, raw_view(options));
}

bool is_complete(const sr_transport& all) noexcept {
  return all.props != nullptr && all.op_query != nullptr && all.open != nullptr && all.close != nullptr &&
         all.stats != nullptr && all.mem_register != nullptr && all.mem_deregister != nullptr &&
         all.group_create != nullptr && all.group_error != nullptr && all.group_abort != nullptr &&
         all.group_destroy != nullptr && all.op_prepare != nullptr && all.op_start != nullptr &&
         all.op_test != nullptr && all.op_wait != nullptr && all.op_free != nullptr;
}

/// A CallGuard's limit for a function with a deadline: 5 s after the deadline. Nothing if that never passes.
std::optional<std::chrono::milliseconds> limit_of(sdk::Deadline deadline) {
  constexpr std::chrono::seconds lateness{5};
  if (deadline == sdk::Deadline::never()) {
    return std::nullopt;
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(deadline.left()) + lateness;
}

/// The deepest chain of transports that wrap each other. A circle would never end.
constexpr std::size_t deepest_wrapping = 8;

}  // namespace

sr_transport functions_of(const Plugin& plugin) {
  const std::string what = fmt::format("the function table of {}", plugin.path().string());
  const auto functions = read_struct<sr_transport>(plugin.table().functions, SR_TRANSPORT_SIZE_1_0, what);
  if (!is_complete(functions)) {
    throw Error(ErrorCode::plugin,
                fmt::format("{} lacks functions: a transport has all of shardrun/transport.h", what));
  }
  return functions;
}

WrappedTransport::WrappedTransport(Plugin opened, const OptionValues& given)
    : plugin(std::move(opened)), values(checked_with_defaults(plugin.options(), given)), options(raw_options(values)) {}

std::int64_t transport_clock() noexcept {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

TransportState::TransportState(Plugin opened, Directories searched, LogSink sink)
    : plugin(std::move(opened)),
      label(label_of(plugin)),
      directories(std::move(searched)),
      log(std::move(sink)),
      functions(functions_of(plugin)),
      self(plugin.table().self),
      raw_host(plugins::raw_host(*this)) {}

void TransportState::configure(TransportSetup given) {
  setup = std::move(given);
  if (functions.configure == nullptr) {
    is_configured = true;
    return;
  }
  const OptionValues values = checked_with_defaults(plugin.options(), setup.options);
  const std::vector<sr_option_value> options = raw_options(values);
  const sr_transport_setup raw = raw_setup(*this, options);
  struct Depth {
    std::size_t& depth;
    ~Depth() { depth = 0; }
  } const depth{configuring};
  configuring = 1;
  call(
      "configuring", [&](sr_error* error) { return functions.configure(self, &raw, error); }, call_limit());
  is_configured = true;
}

void TransportState::require_configured() {
  if (!is_configured) {
    configure({});
  }
}

const sr_plugin& TransportState::wrap(const std::string& name) {
  WrappedTransport& inner = wrapped.emplace_back(Plugin::open(directories, PluginKind::transport, name, log),
                                                 setup.options_of ? setup.options_of(name) : OptionValues());
  const sr_transport table = functions_of(inner.plugin);
  if (table.configure == nullptr) {
    return inner.plugin.table();
  }
  if (configuring > deepest_wrapping) {
    throw Error(ErrorCode::job, fmt::format("transport {} opens others, each by the one before, {} deep and more: name "
                                            "one that moves the bytes itself",
                                            name, deepest_wrapping));
  }
  const sr_transport_setup raw = raw_setup(*this, inner.options);
  const CallGuard guard(label_of(inner.plugin), "configuring");
  ++configuring;
  sr_error error = empty_error();
  const std::int32_t status = table.configure(inner.plugin.table().self, &raw, &error);
  --configuring;
  if (status != SR_OK) {
    fail(fmt::format("transport {}, configuring", name), failure_of(status, error));
  }
  return inner.plugin.table();
}

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

sdk::Props TransportState::props() const {
  sr_transport_props props{};
  props.struct_size = sizeof(props);
  call("asked for its properties", [&](sr_error* error) { return functions.props(self, &props, error); });
  if (functions.op_enqueue == nullptr || functions.op_join == nullptr) {
    props.queue_kinds = 0;
  }
  return sdk::detail::read(props);
}

std::optional<sdk::OpInfo> TransportState::offered(const sdk::OpSpec& op, std::uint32_t members,
                                                   std::string* why) const {
  const sdk::detail::WrittenOps raw({&op, 1});
  sr_op_info info{};
  info.struct_size = sizeof(info);
  bool is_offered = true;
  call(fmt::format("asked for {}", sdk::describe(op)), [&](sr_error* error) {
    const std::int32_t status = functions.op_query(self, raw.data(), members, &info, error);
    is_offered = status != SR_UNIMPLEMENTED || !sdk::find_opcode(op.opcode)->collective;
    if (!is_offered && why != nullptr) {
      *why = failure_of(status, *error).what();
    }
    return is_offered ? status : SR_OK;
  });
  const bool is_rounded_once = (info.flags & SR_OP_INFO_ROUNDED_ONCE) != 0 || !sdk::has_wide_partials(op, members);
  if (!is_offered || (!is_rounded_once && is_in_host_memory(op) && props().moves(SR_MEMORY_HOST))) {
    return std::nullopt;
  }
  return sdk::detail::read(info);
}

std::optional<sdk::OpInfo> TransportState::offered_as_asked(const sdk::OpSpec& op, std::uint32_t members) const {
  const std::optional<sdk::OpInfo> info = setup.checked ? std::nullopt : offered(op, members);
  if (!info || !is_in_order(op) || members == 1 || !sdk::find_opcode(op.opcode)->reduces) {
    return info;
  }
  const std::uint32_t needed =
      SR_OP_INFO_STEPWISE | (sdk::has_wide_partials(op, members) ? SR_OP_INFO_ROUNDED_ONCE : 0);
  return (info->flags & needed) == needed ? info : std::nullopt;
}

Transport::Transport(std::shared_ptr<TransportState> state) : state_(std::move(state)) {}
Transport::Transport(Transport&& other) noexcept = default;
Transport& Transport::operator=(Transport&& other) noexcept = default;
Transport::~Transport() = default;

Transport Transport::load(const Directories& directories, std::string_view name, LogSink log) {
  return Transport(
      std::make_shared<TransportState>(Plugin::open(directories, PluginKind::transport, name, log), directories, log));
}

const Manifest& Transport::manifest() const noexcept { return state_->plugin.manifest(); }
const std::vector<OptionSpec>& Transport::options() const noexcept { return state_->plugin.options(); }

void Transport::configure(TransportSetup setup) { state_->configure(std::move(setup)); }

sdk::Props Transport::props() const {
  state_->require_configured();
  return state_->props();
}

sdk::OpInfo Transport::query(const sdk::OpSpec& op, std::uint32_t members) const {
  try {
    sdk::check(op, members);
  } catch (const sdk::TransportError& invalid) {
    fail(state_->what("asked for an op"), invalid);
  }
  state_->require_configured();
  if (const std::optional<sdk::OpInfo> info = state_->offered_as_asked(op, members)) {
    return *info;
  }
  require_host_memory(*state_, op, members);
  return {.flags = SR_OP_INFO_ASYNC | sdk::rounding_flags(op, members) |
                   (is_in_order(op) ? SR_OP_INFO_ORDERED | SR_OP_INFO_STEPWISE : 0),
          .scratch_bytes = composed_scratch_bytes(op, members)};
}

bool Transport::shares_first() const noexcept { return state_->functions.share_first != nullptr; }

bool Transport::share_first(std::uint32_t rank, std::uint32_t world_size, std::string& bytes) {
  bool is_offered = true;
  state_->call("sharing where ranks meet", [&](sr_error* error) {
    const std::int32_t status =
        state_->functions.share_first(state_->self, rank, world_size, bytes.data(), bytes.size(), error);
    is_offered = status != SR_UNIMPLEMENTED;
    return is_offered ? status : SR_OK;
  });
  return is_offered;
}

void Transport::open(sdk::Config config, TransportHost& host) {
  TransportState& state = *state_;
  if (!state.is_configured) {
    state.configure({.options = {}, .world_size = config.world_size});
  }
  const OptionValues values = checked_with_defaults(state.plugin.options(), state.setup.options);
  const std::vector<sr_option_value> options = raw_options(values);
  state.host = &host;
  config.host = sdk::TransportHost(&state.raw_host);
  const sr_transport_config raw = sdk::detail::write(config, raw_view(options));
  state.call(
      "opening", [&](sr_error* error) { return state.functions.open(state.self, &raw, error); },
      limit_of(config.deadline));
  state.is_open = true;
}

std::uint64_t Transport::register_memory(void* data, std::uint64_t bytes, int descriptor, std::uint32_t kind,
                                         std::uint32_t device) {
  sr_memory memory{};
  memory.struct_size = sizeof(memory);
  memory.kind = kind;
  memory.data = data;
  memory.bytes = bytes;
  memory.descriptor = descriptor;
  memory.device = device;
  std::uint64_t registration = 0;
  state_->call(fmt::format("registering {} bytes of memory", bytes), [&](sr_error* error) {
    return state_->functions.mem_register(state_->self, &memory, &registration, error);
  });
  state_->registrations.push_back(registration);
  return registration;
}

TransportGroup Transport::group(const sdk::GroupSpec& spec) {
  auto state = std::make_shared<TransportGroup::State>(state_, spec);
  if (state_->setup.checked && spec.size() > 1) {
    // The second group is connected now. If that came later, members that prepare ops of several groups in different
    // orders would wait for each other.
    static_cast<void>(state->composing(spec.deadline.to_border()));
  }
  return TransportGroup(std::move(state));
}

std::uint64_t Transport::wire_bytes() const {
  sr_transport_stats stats{};
  stats.struct_size = sizeof(stats);
  state_->call("asked for its statistics",
               [&](sr_error* error) { return state_->functions.stats(state_->self, &stats, error); });
  return stats.wire_bytes;
}

sdk::Arrivals Transport::arrivals(std::uint32_t rank) const {
  const sr_transport& functions = state_->functions;
  sr_arrivals arrivals{};
  arrivals.struct_size = sizeof(arrivals);
  if (functions.arrivals != nullptr) {
    state_->call("asked how fast messages came in", [&](sr_error* error) {
      const std::int32_t status = functions.arrivals(state_->self, rank, &arrivals, error);
      return status == SR_UNIMPLEMENTED ? SR_OK : status;
    });
  }
  return sdk::detail::read(arrivals);
}

}  // namespace shardrun::plugins
