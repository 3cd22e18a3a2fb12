// Data parallelism that sends only the largest elements of the gradients (Aji & Heafield 2017, arXiv:1704.05021). What
// is not sent is kept for the next step (Stich et al. 2018, arXiv:1809.07599, algorithm 1).

#include <shardrun/sdk/strategy.hpp>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace {

using namespace shardrun::sdk;

class TopK {
 public:
  static std::vector<Option> options() {
    return {number_option("ratio", 0.01, 1e-9, 1, "share of a gradient's elements that is sent each step")};
  }

  void make_plan(const Job& job, const Graph& graph, PlanWriter& plan) const {
    if (!graph.has_axis("batch")) {
      throw InvalidJob("the model has no axis 'batch', so there are no samples to share out");
    }
    const std::string data = only_mesh_axis(job, "data");
    plan.add_mesh_axis(data, job.ranks);
    plan.place_axis("batch", {data});
    plan.set_bucket_bytes(std::uint64_t{16} << 20);
    plan.sync_gradients("*", data);
    plan.add_hook_state(Hook::sync_gradients, "residual");
  }

  void plan_hook(const Job& job, const HookGroup& group, HookWriter& writer) const {
    const auto share = static_cast<std::uint64_t>(job.options.number("ratio") * static_cast<double>(group.elements));
    const std::uint64_t sent = 2 * std::clamp<std::uint64_t>(share, 1, group.elements);  // index and value
    writer.add_buffer(Element::i32, group.elements);
    writer.add_buffer(Element::i32, sent);
    writer.add_buffer(Element::i32, sent * group.members);
    writer.add_call(select);
    writer.add_exchange(Exchange::all_gather, packed, received);
    writer.add_call(sum);
  }

  void sync_gradients(const HookCall& call) const {
    if (call.number() == select) {
      pack_largest(call.floats(gradient), call.floats(residual), call.whole_numbers(order), call.whole_numbers(packed));
    } else {
      add_up(call.whole_numbers(received), call.floats(gradient));
    }
  }

 private:
  enum Call : std::uint32_t { select, sum };
  enum Buffer : std::uint32_t { gradient, residual, order, packed, received };

  /// The bits without the sign order floats by magnitude, with NaN last.
  static std::uint32_t size_of(float value) { return std::bit_cast<std::uint32_t>(value) & 0x7fffffffU; }

  static void pack_largest(std::span<const float> made, std::span<float> kept, std::span<std::int32_t> places,
                           std::span<std::int32_t> sent) {
    for (std::size_t i = 0; i < made.size(); ++i) {
      kept[i] += made[i];
      places[i] = static_cast<std::int32_t>(i);
    }
    const auto at = [&](std::int32_t place) { return size_of(kept[static_cast<std::size_t>(place)]); };
    const auto count = static_cast<std::ptrdiff_t>(sent.size() / 2);
    std::nth_element(places.begin(), places.begin() + count - 1, places.end(),
                     [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a < b; });
    std::sort(places.begin(), places.begin() + count);
    for (std::size_t i = 0; i < sent.size() / 2; ++i) {
      float& value = kept[static_cast<std::size_t>(places[i])];
      sent[2 * i] = places[i];
      sent[2 * i + 1] = std::bit_cast<std::int32_t>(value);
      value = 0;
    }
  }

  static void add_up(std::span<const std::int32_t> from_all, std::span<float> total) {
    std::fill(total.begin(), total.end(), 0.0F);
    for (std::size_t i = 0; i < from_all.size(); i += 2) {
      total[static_cast<std::size_t>(from_all[i])] += std::bit_cast<float>(from_all[i + 1]);
    }
  }
};

}  // namespace

SHARDRUN_EXPORT_STRATEGY(TopK, "topk", "1.0")
