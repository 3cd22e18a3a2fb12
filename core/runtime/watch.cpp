// The part of Executor that detects bits of states that change between two steps: see partition::watch_states.

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"
#include "core/base/process.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

using partition::KeptHash;
using partition::Watch;

void Executor::watch() {
  if (programs_.watched.empty()) {
    return;
  }
  std::vector<device::TensorView> ranges;
  for (const partition::Watched& watched : programs_.watched) {
    device::TensorView view{.data = arena_->data() + watched.offset, .dtype = graph::DType::u8, .rank = 1};
    view.shape[0] = static_cast<std::int64_t>(watched.bytes);
    ranges.push_back(view);
  }
  hashes_ = std::make_unique<device::TensorHashes>(ranges);
  const std::span<const std::uint64_t> hashes = hashes_->compute(queue(), threads_);
  for (std::size_t range = 0; range < hashes.size(); ++range) {
    kept_hash(range) = {.hash = hashes[range]};
  }
}

KeptHash& Executor::kept_hash(std::size_t range) const {
  const std::shared_ptr<const device::Memory>& memory = staging_ == nullptr ? arena_ : staging_;
  return reinterpret_cast<KeptHash*>(memory->data() + programs_.hashes_offset)[range];
}

void Executor::verify_states() const {
  if (hashes_ == nullptr) {
    return;
  }
  const std::span<const std::uint64_t> hashes = hashes_->compute(queue(), threads_);
  for (std::size_t range = 0; range < hashes.size(); ++range) {
    require_kept(range, hashes[range]);
  }
}

void Executor::require_kept(std::size_t range, std::uint64_t found) const {
  const KeptHash& kept = kept_hash(range);
  if (found == kept.hash) {
    return;
  }
  const graph::StateId state = programs_.watched[range].state;
  throw Error(
      ErrorCode::damaged,
      fmt::format("step {}: bits of {} ({}) have changed in the memory of rank {} on host {}: {} had the hash {:016x}, "
                  "and now has {:016x}. A memory or a processor of that host has changed them. Nothing of this step is "
                  "saved. Run the job again from its newest checkpoint, and without that host if it happens again",
                  step_.value_or(-1) + 1, programs_.states[state].name,
                  partition::to_string(programs_.states[state].category), programs_.rank, host_name(),
                  kept.step < 0 ? "what the run began with" : fmt::format("what step {} wrote", kept.step + 1),
                  kept.hash, found));
}

void Executor::perform_watched(Call& call, std::span<const device::Scalars> scalars) {
  const auto for_each = [&](Watch::When when, const auto& act) {
    for (const Watch& watch : call.watches) {
      if (watch.when == when) {
        act(watch);
      }
    }
  };
  for_each(Watch::When::before,
           [&](const Watch& watch) { require_kept(watch.range, hashes_->compute(*queue_, threads_, watch.range)); });
  if (std::ranges::find(call.watches, Watch::When::in_place, &Watch::when) == call.watches.end()) {
    perform(call, scalars);
  } else {
    device::Scalars hashing = scalars[static_cast<std::size_t>(call.instruction->call)];
    pairs_.fill({});
    hashing.hashes = pairs_.data();
    compute(call, hashing);
    for_each(Watch::When::in_place, [&](const Watch& watch) {
      require_kept(watch.range, pairs_[watch.pair].read);
      kept_hash(watch.range) = {.hash = pairs_[watch.pair].written, .step = step_.value_or(-1)};
    });
  }
  for_each(Watch::When::after, [&](const Watch& watch) {
    kept_hash(watch.range) = {.hash = hashes_->compute(*queue_, threads_, watch.range), .step = step_.value_or(-1)};
  });
}

void Executor::expect_twice() {
  std::vector<device::TensorView> views;
  for (const graph::StateId state : programs_.states.ids()) {
    const partition::Buffer& buffer = programs_.states[state];
    if (buffer.category == partition::Category::gradients || buffer.category == partition::Category::activations) {
      made_.push_back(state);
      views.push_back(views_.front()[partition::buffer_of(state)]);
    }
  }
  made_hashes_ = std::make_unique<device::TensorHashes>(views);
  first_hashes_.resize(views.size());
}

const partition::Buffer* Executor::run_twice(std::size_t program, std::span<const device::Scalars> scalars,
                                             const std::function<void()>& refill) {
  run(program, scalars);
  std::ranges::copy(made_hashes_->compute(queue(), threads_), first_hashes_.begin());
  refill();
  const partition::SentBytes once = sent_[program];  // because the plan counts a microbatch once
  threads_.rotate(1);
  const std::unique_ptr<device::Threads, void (*)(device::Threads*)> rotated(
      &threads_, [](device::Threads* threads) { threads->rotate(0); });
  run(program, scalars);
  for (auto& [axis, of_axis] : sent_[program]) {  // in place, because calls point to the numbers
    for (auto& [collective, bytes] : of_axis) {
      bytes = once.at(axis).at(collective);
    }
  }
  const std::span<const std::uint64_t> again = made_hashes_->compute(queue(), threads_);
  const auto differs = std::ranges::mismatch(first_hashes_, again).in1;
  return differs == first_hashes_.end()
             ? nullptr
             : &programs_.states[made_[static_cast<std::size_t>(differs - first_hashes_.begin())]];
}

}  // namespace shardrun::runtime
