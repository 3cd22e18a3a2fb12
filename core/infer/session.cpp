#include "core/infer/session.h"

#include <algorithm>
#include <utility>

#include "core/data/feed.h"
#include "core/device/host_tensor.h"

namespace shardrun::infer {

Session::Program::Program(runtime::Executor& executor, std::string_view name, std::int64_t rows)
    : number(executor.find(name, rows)),
      inputs(executor.find_input(number, "inputs")),
      positions(executor.find_input(number, "positions")),
      pages(executor.find_input(number, "pages")),
      logits(executor.output(number, "logits")) {
  for (const std::optional<device::TensorView>& each : {inputs, positions}) {
    length = each ? each->global[1] : length;
  }
}

Session::Session(runtime::Executor& executor, const sdk::CacheSizes& caches, std::int64_t slots, std::int64_t context)
    : executor_(executor),
      caches_(caches),
      context_(context),
      prefill_(executor, workload::prefill_function, 1),
      decode_(executor, workload::decode_function, slots),
      slots_(static_cast<std::size_t>(slots)) {
  for (std::int64_t page = caches.pages; page-- > 0;) {
    free_pages_.push_back(static_cast<std::int32_t>(page));
  }
}

std::int64_t Session::pages_of(const Request& request) const {
  // The last token that is added is never read again.
  const std::int64_t cached = static_cast<std::int64_t>(request.prompt.size()) + request.tokens - 1;
  return (cached + caches_.page - 1) / caches_.page;
}

void Session::add(Request request) {
  request.tokens = std::min(request.tokens, context_ - std::ssize(request.prompt));
  waiting_.push_back(std::move(request));
}

void Session::cancel(std::int64_t id) {
  std::erase_if(waiting_, [id](const Request& each) { return each.id == id; });
  for (Slot& slot : slots_) {
    if (slot.is_used && slot.request.id == id) {
      release(slot);
    }
  }
}

std::int64_t Session::requests() const {
  return std::ssize(waiting_) + std::ranges::count(slots_, true, &Slot::is_used);
}

void Session::admit() {
  while (!waiting_.empty()) {
    const auto slot = std::ranges::find(slots_, false, &Slot::is_used);
    const auto pages = static_cast<std::size_t>(pages_of(waiting_.front()));
    if (slot == slots_.end() || pages > free_pages_.size()) {
      return;
    }
    *slot = {.is_used = true, .request = std::move(waiting_.front()), .number = started_++};
    waiting_.pop_front();
    slot->tokens = slot->request.prompt;
    slot->pages.assign(free_pages_.end() - static_cast<std::ptrdiff_t>(pages), free_pages_.end());
    free_pages_.resize(free_pages_.size() - pages);
  }
}

void Session::release(Slot& slot) {
  free_pages_.insert(free_pages_.end(), slot.pages.rbegin(), slot.pages.rend());
  slot = {};
}

void Session::step(const Emit& emit) {
  admit();
  Slot* next = nullptr;  // of the sequences whose prompt is not read, the one that started first
  for (Slot& slot : slots_) {
    if (slot.is_used && !slot.is_read() && (next == nullptr || slot.number < next->number)) {
      next = &slot;
    }
  }
  if (next != nullptr) {
    prefill(*next, emit);
  }
  if (std::ranges::any_of(slots_, &Slot::is_read)) {
    decode(emit);
  }
}

void Session::feed(const Program& program, const std::function<Fed(std::int64_t row)>& fed) {
  const device::HostAccess host = executor_.host(device::Access::write);
  const auto fill = [&](const std::optional<device::TensorView>& input, std::int32_t absent, const auto& value) {
    if (!input) {
      return;
    }
    data::feed_inputs(host, *input, [&](std::int64_t first, const device::TensorView& rows) {
      const std::span<std::int32_t> elements = device::elements_of<std::int32_t>(rows);
      const auto columns = static_cast<std::size_t>(rows.shape[1]);
      for (std::size_t e = 0; e < elements.size(); ++e) {
        const Fed of_row = fed(first + static_cast<std::int64_t>(e / columns));
        elements[e] = of_row.slot == nullptr ? absent : value(of_row, e % columns);
      }
    });
  };
  fill(program.inputs, 0, [](const Fed& row, std::size_t i) {
    const auto at = static_cast<std::size_t>(row.slot->cached) + i;
    return static_cast<std::int64_t>(i) < row.tokens ? row.slot->tokens[at] : 0;
  });
  fill(program.positions, -1, [](const Fed& row, std::size_t i) {
    const auto at = static_cast<std::int64_t>(i);
    return at < row.tokens ? static_cast<std::int32_t>(row.slot->cached + at) : -1;
  });
  fill(program.pages, -1,
       [](const Fed& row, std::size_t i) { return i < row.slot->pages.size() ? row.slot->pages[i] : -1; });
}

void Session::prefill(Slot& slot, const Emit& emit) {
  const std::int64_t left = static_cast<std::int64_t>(slot.tokens.size()) - slot.cached;
  const std::int64_t tokens = std::min(left, prefill_.length);
  feed(prefill_, [&](std::int64_t) { return Fed{&slot, tokens}; });
  executor_.run(prefill_.number, device::Scalars{.position = tokens - 1});
  slot.cached += tokens;
  prefilled_ += tokens;
  if (slot.cached == static_cast<std::int64_t>(slot.tokens.size())) {
    const device::HostTensor logits(executor_.host(device::Access::read), prefill_.logits, device::Access::read);
    draw(slot, device::elements_of<float>(logits.view()), emit);
  }
}

void Session::decode(const Emit& emit) {
  std::vector<Slot*> fed;
  for (Slot& slot : slots_) {
    fed.push_back(slot.is_read() ? &slot : nullptr);
  }
  feed(decode_, [&](std::int64_t row) { return Fed{fed[static_cast<std::size_t>(row)], 1}; });
  executor_.run(decode_.number, device::Scalars{.position = 0});
  const device::HostTensor logits(executor_.host(device::Access::read), decode_.logits, device::Access::read);
  const std::span<const float> all = device::elements_of<float>(logits.view());
  const std::size_t vocabulary = all.size() / fed.size();
  for (std::size_t row = 0; row < fed.size(); ++row) {
    if (fed[row] != nullptr) {
      ++fed[row]->cached;
      draw(*fed[row], all.subspan(row * vocabulary, vocabulary), emit);
    }
  }
}

void Session::draw(Slot& slot, std::span<const float> logits, const Emit& emit) {
  const Request& request = slot.request;
  const std::int32_t token = draw_token(logits, request.sampling, {slot.tokens, request.prompt.size()});
  slot.tokens.push_back(token);
  ++drawn_;
  const bool is_end = std::ranges::find(request.ends, token) != request.ends.end();
  const auto drawn = static_cast<std::int64_t>(slot.tokens.size() - request.prompt.size());
  const bool is_last = is_end || drawn >= request.tokens;
  emit({.id = request.id, .token = token, .logits = logits, .is_last = is_last, .is_end = is_end});
  if (is_last && slot.is_used) {  // it may have been cancelled
    release(slot);
  }
}

}  // namespace shardrun::infer
