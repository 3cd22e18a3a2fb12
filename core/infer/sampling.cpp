#include "core/infer/sampling.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_map>

#include "core/base/error.h"
#include "core/base/philox.h"
#include "core/device/host_tensor.h"
#include "core/workload/program.h"

namespace shardrun::infer {
namespace {

struct Candidate {
  double weight;  ///< first the logit, then a multiple of the probability
  std::int32_t token;
};

/// Whether `a` is less likely than `b`. A heap with this order has the likeliest candidate first.
bool is_less_likely(const Candidate& a, const Candidate& b) {
  return a.weight < b.weight || (a.weight == b.weight && a.token > b.token);
}

void penalise(std::vector<Candidate>& candidates, const Sampling& how, const Sequence& sequence) {
  if (how.repetition == 1 && how.frequency == 0 && how.presence == 0) {
    return;
  }
  std::unordered_map<std::int32_t, std::int64_t> drawn;  // how often; 0 for tokens that only the prompt has
  for (std::size_t i = 0; i < sequence.tokens.size(); ++i) {
    drawn[sequence.tokens[i]] += i < sequence.prompted ? 0 : 1;
  }
  for (const auto& [token, times] : drawn) {
    if (token < 0 || static_cast<std::size_t>(token) >= candidates.size()) {
      continue;
    }
    double& logit = candidates[static_cast<std::size_t>(token)].weight;
    logit = logit > 0 ? logit / how.repetition : logit * how.repetition;
    logit -= times > 0 ? static_cast<double>(times) * how.frequency + how.presence : 0;
  }
}

/// Keeps the likeliest candidates, in order, until `is_enough(count, sum of their weights)` is true. Removes the
/// others.
template <typename IsEnough>
void keep_likeliest(std::vector<Candidate>& candidates, const IsEnough& is_enough) {
  std::ranges::make_heap(candidates, is_less_likely);
  std::vector<Candidate> kept;
  double sum = 0;
  while (!candidates.empty() && !is_enough(kept.size(), sum)) {
    std::ranges::pop_heap(candidates, is_less_likely);
    sum += candidates.back().weight;
    kept.push_back(candidates.back());
    candidates.pop_back();
  }
  candidates = std::move(kept);
}

double sum_of(const std::vector<Candidate>& candidates) {
  double sum = 0;
  for (const Candidate& each : candidates) {
    sum += each.weight;
  }
  return sum;
}

/// The logarithm of the sum of exp(logit). A logit minus this is the logarithm of its token's probability.
double log_of_sum(std::span<const float> logits) {
  const double highest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - highest);
  }
  return highest + std::log(sum);
}

}  // namespace

std::int32_t draw_token(std::span<const float> logits, const Sampling& how, const Sequence& sequence, double random) {
  const std::size_t count =
      how.vocabulary > 0 ? std::min(static_cast<std::size_t>(how.vocabulary), logits.size()) : logits.size();
  std::vector<Candidate> candidates(count);
  for (std::size_t i = 0; i < count; ++i) {
    candidates[i] = {static_cast<double>(logits[i]), static_cast<std::int32_t>(i)};
  }
  penalise(candidates, how, sequence);
  if (!std::ranges::all_of(logits, [](float logit) { return logit < INFINITY; })) {
    throw Error(ErrorCode::data,
                "the model's logits are not finite numbers, so no token can be drawn: its weights, or "
                "the type in which it is computed, do not fit");
  }
  const Candidate likeliest = *std::ranges::max_element(candidates, is_less_likely);
  if (how.temperature <= 0) {
    return likeliest.token;
  }
  for (Candidate& each : candidates) {
    each.weight = std::exp((each.weight - likeliest.weight) / how.temperature);
  }
  if (how.top_k > 0) {
    keep_likeliest(candidates, [&](std::size_t kept, double) { return kept == static_cast<std::size_t>(how.top_k); });
  }
  if (how.top_p < 1) {
    const double enough = how.top_p * sum_of(candidates);
    keep_likeliest(candidates, [&](std::size_t kept, double sum) { return kept > 0 && sum >= enough; });
  }
  std::erase_if(candidates, [&](const Candidate& each) { return each.weight < how.min_p; });
  const double drawn = random * sum_of(candidates);
  double sum = 0;
  for (const Candidate& each : candidates) {
    sum += each.weight;
    if (sum > drawn) {
      return each.token;
    }
  }
  return candidates.back().token;  // reached only if rounding has made the sum too small
}

std::int32_t draw_token(std::span<const float> logits, const Sampling& how, const Sequence& sequence) {
  const auto number = static_cast<std::uint32_t>(sequence.tokens.size() - sequence.prompted);
  const PhiloxBlock bits = philox({number, 0, 0, 0}, stream_key(how.seed, "sample"));
  return draw_token(logits, how, sequence, static_cast<double>(bits[0]) * 0x1p-32);
}

double log_probability(std::span<const float> logits, std::int32_t token) {
  return static_cast<double>(logits[static_cast<std::size_t>(token)]) - log_of_sum(logits);
}

Likely likeliest(std::span<const float> logits, std::int64_t count, std::int64_t vocabulary) {
  const auto all = static_cast<std::int64_t>(logits.size());
  std::vector<std::int32_t> order(static_cast<std::size_t>(vocabulary == 0 ? all : std::min(all, vocabulary)));
  std::iota(order.begin(), order.end(), 0);
  const auto logit = [&](std::int32_t token) { return logits[static_cast<std::size_t>(token)]; };
  const auto end = order.begin() + std::min<std::ptrdiff_t>(count, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int32_t a, std::int32_t b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  });
  Likely found;
  const double subtracted = log_of_sum(logits);
  std::for_each(order.begin(), end,
                [&](std::int32_t token) { found.emplace_back(token, static_cast<double>(logit(token)) - subtracted); });
  return found;
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

void sample(runtime::Executor& executor, std::vector<std::int32_t> tokens, std::int64_t count, const Sampling& how,
            const std::function<bool()>& goes_on, const std::function<void(std::int32_t)>& emit) {
  const std::size_t program = executor.find(workload::predict_function, 1);
  const device::TensorView inputs = executor.input(program, "inputs");
  const device::TensorView logits = executor.output(program, "logits");
  const auto context = static_cast<std::size_t>(inputs.shape[1]);
  const std::size_t prompted = tokens.size();
  if (tokens.empty()) {
    throw Error(ErrorCode::usage, "sampling starts from at least one token: give a prompt that is not empty");
  }
  for (std::int64_t n = 0; n < count && goes_on(); ++n) {
    const std::size_t used = std::min(tokens.size(), context);
    device::HostTensor read(executor.host(device::Access::write), inputs, device::Access::write);
    const std::span<std::int32_t> row = device::elements_of<std::int32_t>(read.view());
    if (!row.empty()) {  // some ranks hold no part of the row
      // The zeros after the last token do not matter, because no position attends to later ones.
      std::ranges::fill(row, 0);
      std::copy(tokens.end() - static_cast<std::ptrdiff_t>(used), tokens.end(), row.begin());
    }
    read.store();
    executor.run(program, {.position = static_cast<std::int64_t>(used) - 1});
    const device::HostTensor found(executor.host(device::Access::read), logits, device::Access::read);
    tokens.push_back(draw_token(device::elements_of<float>(found.view()), how, {tokens, prompted}));
    emit(tokens.back());
  }
}

}  // namespace shardrun::infer
