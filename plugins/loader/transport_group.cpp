#include <fmt/format.h>
#include <shardrun/sdk/transport/border.hpp>
#include <shardrun/sdk/transport/collectives.hpp>
#include <shardrun/sdk/transport/validate.hpp>

#include <chrono>
#include <type_traits>
#include <utility>

#include "plugins/loader/background.h"
#include "plugins/loader/call.h"
#include "plugins/loader/composed.h"
#include "plugins/loader/transport_queue.h"
#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {
namespace {

/// An op that the plugin provides. start, test and wait allocate nothing unless they fail. The group's first op in a
/// queue that the transport does not support starts a thread; from then on only that thread calls the group's ops.
class NativeOp final : public TransportOp::State, private sdk::Worker::Task {
 public:
  NativeOp(std::shared_ptr<TransportGroup::State> group, std::string what, std::vector<std::byte> scratch)
      : group_(std::move(group)),
        functions_(group_->transport->functions),
        self_(group_->transport->self),
        props_(group_->transport->props()),
        what_(std::move(what)),
        scratch_(std::move(scratch)) {}
  NativeOp(const NativeOp&) = delete;
  NativeOp& operator=(const NativeOp&) = delete;

  ~NativeOp() override {
    if (handle_ == 0) {
      return;
    }
    sdk::Worker* const worker = group_->worker();
    if (worker == nullptr) {
      free_op(*group_->transport, handle_);
      return;
    }
    worker->drop(*this);
    Errand free("freeing", [&](sdk::Deadline) { free_op(*group_->transport, handle_); });
    worker->clean_up(free);
  }

  void prepare(const std::vector<sdk::OpSpec>& specs, std::int64_t deadline) {
    const sdk::detail::WrittenOps raw(specs);
    group_->transport->call(fmt::format("group {}, preparing {}", group_->spec.name, sdk::describe(specs[0])),
                            [&](sr_error* error) {
                              return functions_.op_prepare(self_, group_->handle, raw.data(), raw.size(), sizeof(sr_op),
                                                           deadline, &handle_, error);
                            });
  }

  void start(std::int64_t deadline) override {
    sdk::Worker* const worker = group_->worker();
    is_on_worker_ = worker != nullptr;
    if (is_on_worker_) {
      naming([&] { worker->start(*this, sdk::Deadline::from_border(deadline)); });
      return;
    }
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_start(self_, handle_, nullptr, deadline, &error);
    if (status != SR_OK) {
      fail_as_group(status, error);
    }
  }

  void enqueue(const TransportQueue& queue, std::int64_t timeout) override {
    is_on_worker_ = !takes(queue);
    if (is_on_worker_) {
      naming([&] { group_->background().start_in(sdk::Queue(queue.raw()), *this, std::chrono::nanoseconds(timeout)); });
      return;
    }
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_enqueue(self_, handle_, &queue.raw(), timeout, &error);
    if (status != SR_OK) {
      fail_as_group(status, error);
    }
  }

  void join(const TransportQueue& queue) override {
    if (is_on_worker_) {
      naming([&] { group_->background().join(*this, sdk::Queue(queue.raw())); });
      return;
    }
    if (!takes(queue)) {
      fail(what_, {SR_UNIMPLEMENTED, "an op that was started without a queue cannot be joined into one"});
    }
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_join(self_, handle_, &queue.raw(), &error);
    if (status != SR_OK) {
      fail_as_group(status, error);
    }
  }

  bool test() override {
    if (is_on_worker_) {
      return naming([&] { return group_->background().test(*this); });
    }
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_test(self_, handle_, &error);
    if (status != SR_OK && status != SR_PENDING) {
      fail_as_group(status, error);
    }
    return status == SR_OK;
  }

  bool wait(std::int64_t deadline) override {
    if (is_on_worker_) {
      return naming([&] { return group_->background().wait(*this, sdk::Deadline::from_border(deadline)); });
    }
    sr_error error = empty_error();
    const std::int32_t status = functions_.op_wait(self_, handle_, deadline, &error);
    if (status == SR_OK) {
      return true;
    }
    // A wait that ran out of time and an op past its deadline have the same status. Only in the first case is the op
    // still pending.
    if (status == SR_TIMEOUT) {
      return test();
    }
    fail_as_group(status, error);
  }

  std::optional<sdk::OpTimes> times() override { return is_on_worker_ ? times_on_worker_ : native_times(); }

 private:
  /// Whether the transport supports this queue. Throws Error if neither the transport nor this process does.
  [[nodiscard]] bool takes(const TransportQueue& queue) const {
    const std::uint32_t kind = queue.raw().kind;
    if (!props_.takes(kind) && kind != SR_QUEUE_HOST) {
      fail(what_, {SR_UNIMPLEMENTED, fmt::format("queues of kind {} are not offered", kind)});
    }
    return props_.takes(kind);
  }

  template <class Act>
  std::invoke_result_t<Act> naming(Act act) {
    try {
      return act();
    } catch (const sdk::TransportError& error) {
      fail(what_, error);
    }
  }

  void run(sdk::Deadline deadline) override {
    run_in_background(*group_->transport, handle_, deadline, group_->background(), [] { return std::nullopt; });
    times_on_worker_ = native_times();
  }
  [[nodiscard]] std::string what() const override { return what_; }

  [[nodiscard]] std::optional<sdk::OpTimes> native_times() const {
    if (functions_.op_times == nullptr) {
      return std::nullopt;
    }
    sr_op_times times{};
    times.struct_size = sizeof(times);
    sr_error error = empty_error();
    const bool is_known = functions_.op_times(self_, handle_, &times, &error) == SR_OK;
    return is_known ? std::optional(sdk::detail::read(times)) : std::nullopt;
  }

  /// If another op of the group failed first, on a worker, reports that failure as the reason for this one.
  [[noreturn]] void fail_as_group(std::int32_t status, const sr_error& error) const {
    if (const auto first = group_->failure_of_workers()) {
      fail(what_, *first);
    }
    fail(what_, failure_of(status, error));
  }

  std::shared_ptr<TransportGroup::State> group_;
  const sr_transport& functions_;
  void* self_;
  std::uint64_t handle_ = 0;
  sdk::Props props_;
  std::string what_;
  std::vector<std::byte> scratch_;  ///< used if the host provides none
  bool is_on_worker_ = false;       ///< the latest run is on the worker
  std::optional<sdk::OpTimes> times_on_worker_;
};

void require_valid(const TransportGroup::State& group, const std::vector<sdk::OpSpec>& specs) {
  try {
    sdk::validate(specs, group.spec.rank, group.spec.size());
  } catch (const sdk::TransportError& invalid) {
    fail(group.transport->what(fmt::format("group {}", group.spec.name)), invalid);
  }
}

/// Throws Error if an op needs scratch in device memory and brings too little: the loader provides only host memory.
void require_device_scratch(const TransportGroup::State& group, const std::vector<sdk::OpSpec>& specs,
                            const std::vector<std::uint64_t>& needed) {
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const std::uint64_t given = specs[i].scratch ? specs[i].scratch->bytes : 0;
    if (needed[i] > given && !is_in_host_memory(specs[i])) {
      fail(group.transport->what(fmt::format("group {}, {}", group.spec.name, sdk::describe(specs[i]))),
           {SR_INVALID, fmt::format("it needs {} bytes of scratch in the device's memory, and has {}: plan it by "
                                    "Transport::query",
                                    needed[i], given)});
    }
  }
}

}  // namespace

bool is_in_host_memory(const sdk::OpSpec& op) noexcept {
  const auto is_elsewhere = [](const std::optional<sdk::Buffer>& buffer) {
    return buffer && buffer->kind == SR_MEMORY_CUDA;
  };
  return !is_elsewhere(op.send) && !is_elsewhere(op.recv);
}

void require_host_memory(const TransportState& transport, const sdk::OpSpec& op, std::uint32_t members) {
  if (is_in_host_memory(op)) {
    return;
  }
  if (transport.setup.checked) {
    fail(transport.what(sdk::describe(op)),
         {SR_UNIMPLEMENTED, "[job] check = transfers makes it of sends and receives, in host memory alone"});
  }
  std::string why;
  const bool lacks_order = transport.offered(op, members, &why).has_value() && is_in_order(op);
  fail(transport.what(sdk::describe(op)),
       {SR_UNIMPLEMENTED,
        fmt::format(
            "it {}{}, and what it lacks can be made of sends and receives in host memory alone",
            lacks_order ? "does not reduce in the order of the members, as the job asks" : "does not offer this op",
            why.empty() ? "" : fmt::format(" ({})", why))});
}

std::uint64_t create_group(const TransportState& transport, const sdk::GroupSpec& spec) {
  const sr_group raw = sdk::detail::write(spec);
  std::uint64_t handle = 0;
  transport.call(fmt::format("connecting group {}", spec.name), [&](sr_error* error) {
    return transport.functions.group_create(transport.self, &raw, &handle, error);
  });
  return handle;
}

TransportGroup::State::State(std::shared_ptr<TransportState> of, sdk::GroupSpec given)
    : transport(std::move(of)), spec(std::move(given)) {
  if (!transport->is_open) {
    throw Error(ErrorCode::internal,
                transport->what(fmt::format("group {} was asked for before it was opened", spec.name)));
  }
  if (spec.rank >= spec.size()) {
    throw Error(ErrorCode::internal, fmt::format("group {} has {} members, and this rank was said to be member {}",
                                                 spec.name, spec.size(), spec.rank));
  }
  handle = create_group(*transport, spec);
}

TransportGroup::State::~State() {
  composed_group_.reset();
  background_.reset();
  sr_error error = empty_error();
  (void)transport->functions.group_destroy(transport->self, handle, &error);
}

ComposedGroup& TransportGroup::State::composing(std::int64_t deadline) {
  if (composed_group_ != nullptr) {
    return *composed_group_;
  }
  try {
    composed_group_ = std::make_unique<ComposedGroup>(*this, deadline);
  } catch (const Error& failure) {
    // The group is unusable: another attempt would not find the members in the same state.
    abort_native(failure.message());
    throw;
  }
  composed_.store(composed_group_.get(), std::memory_order_release);
  return *composed_group_;
}

sdk::Worker& TransportGroup::State::background() {
  if (background_ == nullptr) {
    background_ = std::make_unique<sdk::Worker>([this] { abort_native(worker()->failure()->what()); });
    worker_.store(background_.get(), std::memory_order_release);
  }
  return *background_;
}

std::optional<sdk::TransportError> TransportGroup::State::failure_of_workers() const {
  ComposedGroup* const composing = composed();
  std::optional<sdk::TransportError> failure = composing != nullptr ? composing->worker().failure() : std::nullopt;
  return failure || worker() == nullptr ? failure : worker()->failure();
}

void TransportGroup::State::abort_native(const std::string& reason) const noexcept {
  sr_error error = empty_error();
  (void)transport->functions.group_abort(transport->self, handle, reason.c_str(), &error);
}

std::vector<std::byte> provide_scratch(std::vector<sdk::OpSpec>& ops, const std::vector<std::uint64_t>& needed) {
  constexpr std::uint64_t alignment = 64;
  const auto lacks = [&](std::size_t i) { return needed[i] > (ops[i].scratch ? ops[i].scratch->bytes : 0); };
  const auto rounded = [](std::uint64_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::uint64_t all = 0;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    all += lacks(i) ? rounded(needed[i]) : 0;
  }
  std::vector<std::byte> memory(all == 0 ? 0 : all + alignment);
  std::uint64_t at = (alignment - reinterpret_cast<std::uintptr_t>(memory.data()) % alignment) % alignment;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (lacks(i)) {
      ops[i].scratch = sdk::Buffer{.data = memory.data() + at, .bytes = needed[i]};
      at += rounded(needed[i]);
    }
  }
  return memory;
}

TransportGroup::TransportGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}
TransportGroup::TransportGroup(TransportGroup&& other) noexcept = default;
TransportGroup& TransportGroup::operator=(TransportGroup&& other) noexcept = default;
TransportGroup::~TransportGroup() = default;

TransportOp TransportGroup::prepare(const std::vector<sdk::OpSpec>& ops, std::int64_t deadline) {
  require_valid(*state_, ops);
  std::vector<sdk::OpSpec> specs = ops;
  bool is_offered = true;
  std::vector<std::uint64_t> needed;
  for (const sdk::OpSpec& spec : specs) {
    const std::optional<sdk::OpInfo> info = state_->transport->offered_as_asked(spec, state_->spec.size());
    is_offered = is_offered && info;
    needed.push_back(info ? info->scratch_bytes : composed_scratch_bytes(spec, state_->spec.size()));
  }
  if (!is_offered) {
    require_host_memory(*state_->transport, specs[0], state_->spec.size());
  }
  require_device_scratch(*state_, specs, needed);
  std::vector<std::byte> scratch = provide_scratch(specs, needed);
  if (!is_offered) {
    return TransportOp(compose_op(state_, specs[0], std::move(scratch), deadline));
  }
  std::string what = state_->transport->what(fmt::format("group {}, {}", state_->spec.name, sdk::describe(specs[0])));
  auto op = std::make_unique<NativeOp>(state_, std::move(what), std::move(scratch));
  op->prepare(specs, deadline);
  return TransportOp(std::move(op));
}

void TransportGroup::abort(const std::string& reason) noexcept {
  state_->abort_native(reason);
  if (ComposedGroup* const composed = state_->composed()) {
    composed->worker().fail({SR_ABORTED, reason});
  }
  if (sdk::Worker* const worker = state_->worker()) {
    worker->fail({SR_ABORTED, reason});
  }
}

std::optional<std::string> TransportGroup::error() const {
  if (const std::optional<sdk::TransportError> failure = state_->failure_of_workers()) {
    return failure->what();
  }
  const TransportState& transport = *state_->transport;
  sr_error error = empty_error();
  if (transport.functions.group_error(transport.self, state_->handle, &error) != SR_OK) {
    return text_of(error);
  }
  return std::nullopt;
}

TransportOp::TransportOp(std::unique_ptr<State> state) : state_(std::move(state)) {}
TransportOp::TransportOp(TransportOp&& other) noexcept = default;
TransportOp& TransportOp::operator=(TransportOp&& other) noexcept = default;
TransportOp::~TransportOp() = default;

void TransportOp::start(std::int64_t deadline) { state_->start(deadline); }
void TransportOp::enqueue(const TransportQueue& queue, std::int64_t timeout) { state_->enqueue(queue, timeout); }
void TransportOp::join(const TransportQueue& queue) { state_->join(queue); }
bool TransportOp::test() { return state_->test(); }
bool TransportOp::wait(std::int64_t deadline) { return state_->wait(deadline); }
std::optional<sdk::OpTimes> TransportOp::times() { return state_->times(); }

}  // namespace shardrun::plugins
