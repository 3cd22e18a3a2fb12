#include "core/train/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/device/host_tensor.h"
#include "core/workload/program.h"

namespace shardrun::train {

std::int32_t draw_token(std::span<const float> logits, const SamplingSettings& settings, double random) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float la = logits[static_cast<std::size_t>(a)];
    const float lb = logits[static_cast<std::size_t>(b)];
    return la > lb || (la == lb && a < b);
  };
  const std::size_t all = order.size();
  const bool greedy = settings.temperature <= 0;
  const std::size_t kept = greedy               ? 1
                           : settings.top_k > 0 ? std::min(all, static_cast<std::size_t>(settings.top_k))
                                                : all;
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(), likelier);
  const double highest = static_cast<double>(logits[static_cast<std::size_t>(order[0])]);
  if (greedy) {
    return order[0];
  }
  std::vector<double> cumulative(kept);
  double total = 0;
  for (std::size_t i = 0; i < kept; ++i) {
    total +=
        std::exp((static_cast<double>(logits[static_cast<std::size_t>(order[i])]) - highest) / settings.temperature);
    cumulative[i] = total;
  }
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), random * total) - cumulative.begin();
  return order[std::min(static_cast<std::size_t>(drawn), kept - 1)];
}

std::vector<std::int32_t> first_tokens(const data::Tokenizer& tokenizer) {
  try {
    std::vector<std::int32_t> tokens = tokenizer.encode("\n");
    tokens.resize(1);
    return tokens;
  } catch (const Error&) {
    return {0};
  }
}

void sample(runtime::Executor& executor, std::vector<std::int32_t> tokens, const SamplingSettings& settings,
            const std::function<void(std::int32_t)>& emit) {
  const std::size_t program = executor.find(workload::predict_function, 1);
  const device::TensorView inputs = executor.input(program, "inputs");
  const device::TensorView logits = executor.output(program, "logits");
  const auto context = static_cast<std::size_t>(inputs.shape[1]);
  const std::int64_t drawable =
      settings.vocabulary > 0 ? std::min(settings.vocabulary, logits.elements()) : logits.elements();
  const PhiloxKey key = stream_key(settings.seed, "sample");
  if (tokens.empty()) {
    throw Error(ErrorCode::usage, "sampling starts from at least one token: give a prompt that is not empty");
  }
  for (std::int64_t n = 0; n < settings.tokens && (!settings.goes_on || settings.goes_on()); ++n) {
    const std::size_t used = std::min(tokens.size(), context);
    device::HostTensor read(executor.host(device::Access::write), inputs, device::Access::write);
    const std::span<std::int32_t> row = device::elements_of<std::int32_t>(read.view());
    if (!row.empty()) {  // a rank may hold no part of the row
      // The zeros after the last token do not matter: no position attends to later ones.
      std::ranges::fill(row, 0);
      std::copy(tokens.end() - static_cast<std::ptrdiff_t>(used), tokens.end(), row.begin());
    }
    read.store();
    executor.run(program, {.position = static_cast<std::int64_t>(used) - 1});
    const PhiloxBlock bits = philox({static_cast<std::uint32_t>(n), 0, 0, 0}, key);
    const device::HostTensor found(executor.host(device::Access::read), logits, device::Access::read);
    const std::span<const float> values = device::elements_of<float>(found.view());
    tokens.push_back(
        draw_token(values.first(static_cast<std::size_t>(drawable)), settings, static_cast<double>(bits[0]) * 0x1p-32));
    emit(tokens.back());
  }
}

}  // namespace shardrun::train
