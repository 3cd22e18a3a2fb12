#include <fmt/format.h>
#include <shardrun/sdk/collectives.hpp>

#include <utility>

#include "plugins/loader/call.h"
#include "plugins/loader/composed.h"
#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

/// An op of the plugin. Nothing here allocates where all goes well.
class NativeOp final : public TransportOp::State {
 public:
  NativeOp(std::shared_ptr<TransportGroup::State> group, std::string what, std::vector<std::byte> scratch)
      : group_(std::move(group)),
        functions_(group_->transport->functions),
        self_(group_->transport->self),
        what_(std::move(what)),
        scratch_(std::move(scratch)) {}
  NativeOp(const NativeOp&) = delete;
  NativeOp& operator=(const NativeOp&) = delete;

  ~NativeOp() override {
    if (handle_ != 0) {
      sr_error error = empty_error();
      (void)functions_.op_free(self_, handle_, &error);
    }
  }

  void prepare(const std::vector<sdk::OpSpec>& specs, std::int64_t deadline) {
    const RawOps raw(specs);
    group_->transport->call(fmt::format("group {}, preparing {}", group_->name, sdk::describe(specs[0])),
                            [&](sr_error* error) {
                              return functions_.op_prepare(self_, group_->handle, raw.data(), raw.size(), sizeof(sr_op),
                                                           deadline, &handle_, error);
                            });
  }

  void start(std::int64_t deadline) override {
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_start(self_, handle_, nullptr, deadline, &error);
    if (status != SR_OK) {
      fail(what_, status, error);
    }
  }

  bool test() override {
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_test(self_, handle_, &error);
    if (status != SR_OK && status != SR_PENDING) {
      fail(what_, status, error);
    }
    return status == SR_OK;
  }

  bool wait(std::int64_t deadline) override {
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_wait(self_, handle_, deadline, &error);
    if (status == SR_OK) {
      return true;
    }
    // A wait that ran out of time and an op that did look alike; the op that goes on is pending.
    if (status == SR_TIMEOUT) {
      return test();
    }
    fail(what_, status, error);
  }

 private:
  std::shared_ptr<TransportGroup::State> group_;
  const sr_transport& functions_;
  void* self_;
  std::uint64_t handle_ = 0;
  std::string what_;
  std::vector<std::byte> scratch_;  ///< where the host brought none
};

void require_valid(const TransportGroup::State& group, const std::vector<sdk::OpSpec>& specs) {
  try {
    sdk::validate(specs, group.rank, group.size);
  } catch (const sdk::TransportError& invalid) {
    fail(group.transport->what(fmt::format("group {}", group.name)), invalid.status(), invalid.what());
  }
}

}  // namespace

std::uint64_t create_group(const TransportState& transport, const GroupRequest& request) {
  sr_group raw{};
  raw.struct_size = sizeof(raw);
  raw.rank = request.rank;
  raw.members = request.members.data();
  raw.member_count = static_cast<std::uint32_t>(request.members.size());
  raw.name = request.name.c_str();
  raw.id = request.id;
  raw.deadline = request.deadline;
  std::uint64_t handle = 0;
  transport.call(fmt::format("connecting group {}", request.name), [&](sr_error* error) {
    return transport.functions.group_create(transport.self, &raw, &handle, error);
  });
  return handle;
}

TransportGroup::State::State(std::shared_ptr<TransportState> of, const GroupRequest& request)
    : transport(std::move(of)),
      name(request.name),
      rank(request.rank),
      size(static_cast<std::uint32_t>(request.members.size())) {
  if (!transport->is_open) {
    throw Error(ErrorCode::internal, transport->what(fmt::format("group {} was asked for before it was opened", name)));
  }
  if (request.rank >= request.members.size()) {
    throw Error(ErrorCode::internal,
                fmt::format("group {} has {} members, and this rank was said to be member {}", name, size, rank));
  }
  handle = create_group(*transport, request);
  try {
    composed = compose_group(*transport, request);
  } catch (...) {
    sr_error error = empty_error();
    (void)transport->functions.group_destroy(transport->self, handle, &error);
    throw;
  }
}

TransportGroup::State::~State() {
  composed.reset();
  sr_error error = empty_error();
  (void)transport->functions.group_destroy(transport->self, handle, &error);
}

TransportGroup::TransportGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
TransportGroup::TransportGroup(TransportGroup&& other) noexcept = default;
TransportGroup& TransportGroup::operator=(TransportGroup&& other) noexcept = default;
TransportGroup::~TransportGroup() = default;

TransportOp TransportGroup::prepare(const std::vector<OpRequest>& ops, std::int64_t deadline) {
  std::vector<sdk::OpSpec> specs;
  specs.reserve(ops.size());
  for (const OpRequest& op : ops) {
    specs.push_back(spec_of(op));
  }
  require_valid(*state_, specs);
  std::vector<std::byte> scratch;
  if (sdk::find_opcode(specs[0].opcode)->collective) {
    const std::optional<OpInfo> info = state_->transport->offered(specs[0], state_->size);
    const std::uint64_t needed = info ? info->scratch_bytes : sdk::scratch_bytes_of(specs[0], state_->size);
    if (needed > (specs[0].scratch ? specs[0].scratch->bytes : 0)) {
      scratch.resize(needed);
      specs[0].scratch = sdk::Buffer{.data = scratch.data(), .bytes = needed};
    }
    if (!info) {
      return TransportOp(compose_op(state_, specs[0], std::move(scratch), deadline));
    }
  }
  std::string what = state_->transport->what(fmt::format("group {}, {}", state_->name, sdk::describe(specs[0])));
  auto op = std::make_unique<NativeOp>(state_, std::move(what), std::move(scratch));
  op->prepare(specs, deadline);
  return TransportOp(std::move(op));
}

void TransportGroup::abort(const std::string& reason) noexcept {
  sr_error error = empty_error();
  (void)state_->transport->functions.group_abort(state_->transport->self, state_->handle, reason.c_str(), &error);
  if (state_->composed != nullptr) {
    state_->composed->worker().fail(SR_ABORTED, reason);
  }
}

std::optional<std::string> TransportGroup::error() const {
  const TransportState& transport = *state_->transport;
  sr_error error = empty_error();
  if (transport.functions.group_error(transport.self, state_->handle, &error) != SR_OK) {
    return text_of(error);
  }
  return state_->composed != nullptr ? state_->composed->error() : std::nullopt;
}

TransportOp::TransportOp(std::unique_ptr<State> state) : state_(std::move(state)) {}
TransportOp::TransportOp(TransportOp&& other) noexcept = default;
TransportOp& TransportOp::operator=(TransportOp&& other) noexcept = default;
TransportOp::~TransportOp() = default;

void TransportOp::start(std::int64_t deadline) { state_->start(deadline); }
bool TransportOp::test() { return state_->test(); }
bool TransportOp::wait(std::int64_t deadline) { return state_->wait(deadline); }

}  // namespace shardrun::plugins
